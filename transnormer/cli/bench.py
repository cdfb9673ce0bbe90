"""`transnormer bench`: speed and memory, as tables and JSON records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from transnormer.cli.console import print_note, print_table, print_text

app = typer.Typer(help="Measure speed and memory; every number is gated by correctness.", no_args_is_help=True)


class Device(StrEnum):
    """Where to measure."""

    cpu = "cpu"
    cuda = "cuda"


Where = Annotated[Device, typer.Option(help="Where to measure.")]
Out = Annotated[Path | None, typer.Option(help="Write the record to this JSON file.")]


@app.command("ops")
def ops(
    device: Where = Device.cpu,
    lengths: Annotated[str, typer.Option(help="Sequence lengths, k = 1024.")] = "2k,4k,8k,16k",
    out: Out = None,
) -> None:
    """Time and memory of the two attentions, forward and backward.

    On the CPU over the length; on a GPU at the shapes of language models and LRA, beside other ways to compute them.

    Example: transnormer bench ops --lengths 2k,16k --out results/bench/ops-cpu.json
    """
    if device is Device.cuda:
        _gpu_ops(out)
        return
    from transnormer.bench.ops import BATCH, HEAD_DIM, HEADS, measure_ops
    from transnormer.bench.record import parse_lengths, write_record
    from transnormer.bench.timing import require_device

    where, wanted = require_device(device.value), parse_lengths(lengths)
    rows = []
    for row in measure_ops(wanted, where):
        rows.append(row)
        print_note(f"{row['case']}  T={row['length']:,}  {row['seconds'] * 1e3:.2f} ms")
    growth = _growth(rows)
    print_table(
        ["op, forward + backward", f"time x, T x{max(wanted) // min(wanted)}", "memory x"],
        [[g["case"], g["time"], g["memory"]] for g in growth],
    )
    if out:
        write_record(
            out, "ops", {"batch": BATCH, "heads": HEADS, "head_dim": HEAD_DIM, "lengths": wanted}, rows, growth=growth
        )
        print_text(f"written to {out}")


def _gpu_ops(out: Path | None) -> None:
    from transnormer.bench.gpu_ops import SHAPES, copy_bandwidth, measure_gpu_ops
    from transnormer.bench.record import write_record
    from transnormer.bench.timing import require_device

    require_device("cuda")
    bandwidth = copy_bandwidth()
    rows = []
    for row in measure_gpu_ops(bandwidth, list(SHAPES)):
        rows.append(row)
        print_note(f"{row['case']}  {row['shape']}  {row['by']}  {row.get('forward_backward_us', 0):.1f} us")
    columns = ["case", "shape", "by", "forward us", "x floor", "forward + backward us", "x floor"]
    keys = ["forward_us", "forward_x_floor", "forward_backward_us", "forward_backward_x_floor"]
    print_table(
        columns, [[r["case"], r["shape"], r["by"], *(f"{r[k]:.2f}" if k in r else "–" for k in keys)] for r in rows]
    )
    if out:
        write_record(out, "ops", {"shapes": SHAPES, "dtype": "bfloat16", "copy_bytes_per_second": bandwidth}, rows)
        print_text(f"written to {out}")


def _growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How much more the longest length costs than the shortest."""
    growth = []
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = sorted((row for row in rows if row["case"] == case), key=lambda row: row["length"])
        first, last = cells[0], cells[-1]
        growth.append(
            {
                "case": case,
                "length": last["length"] / first["length"],
                "time": last["seconds"] / first["seconds"],
                "memory": last["peak_bytes"] / first["peak_bytes"] if first["peak_bytes"] else None,
            }
        )
    return growth


@app.command("speed")
def speed(
    device: Where = Device.cpu,
    lengths: Annotated[str, typer.Option(help="Sequence lengths, k = 1024.")] = "1k,2k,3k,4k,5k",
    methods: Annotated[str | None, typer.Option(help="Comma-separated; all that can run by default.")] = None,
    setting: Annotated[str, typer.Option(help="Model and batch: paper, skyformer, tiny or lm.")] = "paper",
    compiled: Annotated[bool, typer.Option("--compile", help="torch.compile every model.")] = False,
    out: Out = None,
) -> None:
    """The paper's speed table: training and inference steps per second of every method, in one run.

    Example: transnormer bench speed --device cuda --out results/bench/speed-paper.json
    """
    from transnormer.bench.record import parse_lengths, write_record
    from transnormer.bench.speed import describe, known_methods, measure_speed
    from transnormer.bench.speed_table import exponents, markdown
    from transnormer.bench.timing import require_device

    where, wanted = require_device(device.value), parse_lengths(lengths)
    settings = describe(setting, where, compiled=compiled)
    print_text("  ".join(f"{key}={value}" for key, value in settings.items()))
    rows = []
    chosen = methods.split(",") if methods else known_methods(setting)
    for row in measure_speed(setting, chosen, wanted, where, compiled=compiled):
        rows.append(row)
        done = "out of memory" if row.get("out_of_memory") else f"{row['train_steps_per_second']:.2f} train steps/s"
        print_note(f"{row['method']}  T={row['length']:,}  {done}")
    slopes = exponents(rows)
    table = markdown(rows, slopes)
    print_text(table)
    if out:
        write_record(out, "speed", {**settings, "lengths": wanted}, rows, exponents=slopes)
        out.with_suffix(".md").write_text(table + "\n", encoding="utf-8")
        print_text(f"written to {out} and {out.with_suffix('.md')}")

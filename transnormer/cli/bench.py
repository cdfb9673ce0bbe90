"""`transnormer bench`: speed and memory, as tables and JSON records."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from transnormer.cli.command import Command, Group
from transnormer.cli.console import load_torch, print_note, print_table, print_text
from transnormer.cli.lists import choose_names, parse_lengths
from transnormer.cli.verbosity import spoken
from transnormer.errors import ConfigError

app = typer.Typer(
    help="Measure speed and memory; every number is gated by correctness.", no_args_is_help=True, cls=Group
)


class Device(StrEnum):
    """Where to measure."""

    cpu = "cpu"
    cuda = "cuda"


class Execution(StrEnum):
    """How steps are run."""

    eager = "eager"
    compile = "compile"
    cuda_graph = "cuda_graph"


_LONGEST = 1_000_000  # seconds; the system cannot wait for twice as long

Where = Annotated[Device, typer.Option(help="Where to measure.")]


def _writable_json_file(out: Path | None) -> Path | None:
    """Tables are written beside the record, under its name with another ending."""
    if out is None:
        return None
    if not out.name:
        raise ConfigError(f"--out {out} names no file", "use --out record.json")
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: the record is a JSON file", f"use --out {out.with_suffix('.json')}")
    from transnormer.bench.record import require_writable

    require_writable(out)
    return out


def _seconds(limit: float) -> float:
    if not 0 < limit <= _LONGEST:
        raise ConfigError(f"--limit is {limit:g}", f"give a number of seconds above 0, at most {_LONGEST:,}")
    return limit


Out = Annotated[Path | None, typer.Option(help="Write the record to this JSON file.", callback=_writable_json_file)]


@app.command("ops", cls=Command)
@spoken
def ops(
    device: Where = Device.cpu,
    lengths: Annotated[str, typer.Option(help="CPU: sequence lengths, k = 1024.")] = "2k,4k,8k,16k",
    cases: Annotated[str | None, typer.Option(help="GPU: comma-separated ops; all by default.")] = None,
    shapes: Annotated[str | None, typer.Option(help="GPU: comma-separated shapes; all by default.")] = None,
    peers: Annotated[
        str | None, typer.Option(help="GPU: whom to compare with, or none; all that are installed by default.")
    ] = None,
    compile_jobs: Annotated[int, typer.Option(min=1, help="GPU: processes that compile ahead.")] = 1,
    out: Out = None,
) -> None:
    """Time and memory of the two attentions, forward and backward.

    On the CPU over the length; on a GPU at the shapes of language models and LRA, beside other implementations.

    Example: transnormer bench ops --lengths 2k,16k --out results/bench/ops-cpu.json
    """
    if device is Device.cuda:
        _gpu_ops(cases, shapes, peers, compile_jobs, out)
        return
    if (cases, shapes, peers, compile_jobs) != (None, None, None, 1):
        raise ConfigError(
            "--cases, --shapes, --peers and --compile-jobs are for a GPU", "use --device cuda, or --lengths"
        )
    wanted = parse_lengths(lengths)
    load_torch()
    from transnormer.bench.ops import BATCH, HEAD_DIM, HEADS, measure_ops
    from transnormer.bench.record import recorded, write_record

    settings = {"batch": BATCH, "heads": HEADS, "head_dim": HEAD_DIM, "lengths": wanted}
    rows = []
    for row in recorded(measure_ops(wanted), out, "ops", settings):
        rows.append(row)
        print_note(f"{row['case']}  T={row['length']:,}  {row['seconds'] * 1e3:.2f} ms")
    growth = _growth(rows)
    print_table(
        ["op, forward + backward", f"time x, T x{max(wanted) // min(wanted)}", "memory x"],
        [[g["case"], g["time"], g["memory"]] for g in growth],
    )
    if out:
        print_text(write_record(out, "ops", settings, rows, growth=growth))


def _gpu_ops(cases: str | None, shapes: str | None, peers: str | None, compile_jobs: int, out: Path | None) -> None:
    from transnormer.bench.cases import CASES, PEERS, named_peers
    from transnormer.bench.shapes import SHAPES

    chosen_cases, chosen_shapes = choose_names("--cases", cases, CASES), choose_names("--shapes", shapes, SHAPES)
    named = named_peers(peers)
    for name in named or ():
        choose_names("--peers", name, PEERS)
    load_torch()
    from transnormer.bench.gpu_ops import compile_ahead, copy_bandwidth, measure_gpu_ops
    from transnormer.bench.ops_summary import COLUMNS, legend, markdown, summarise, table
    from transnormer.bench.peers import able_peers, peer_versions
    from transnormer.bench.record import recorded, write_record
    from transnormer.bench.timing import require_device

    rivals = able_peers(named)
    require_device("cuda")
    for name, origin in peer_versions().items():
        print_note(f"{name}: {origin}")
    if compile_jobs > 1:
        print_note(f"compiling in {compile_jobs} processes ...")
        compile_ahead(chosen_cases, chosen_shapes, rivals, compile_jobs)
    bandwidth = copy_bandwidth()
    settings = {
        "shapes": {name: list(SHAPES[name]) for name in chosen_shapes},
        "dtype": "bfloat16",
        "copy_bytes_per_second": bandwidth,
        "peers": peer_versions(),
    }
    rows = []
    for row in recorded(measure_gpu_ops(bandwidth, chosen_cases, chosen_shapes, rivals), out, "ops", settings):
        rows.append(row)
        print_note(f"{row['case']}  {row['shape']}  {row['by']}  {_ops_note(row)}")
    summary = summarise(rows, bandwidth)
    print_table(COLUMNS, table(summary))
    print_text(legend(summary))
    if out:
        print_text(write_record(out, "ops", settings, rows, markdown(summary), summary=summary))


def _ops_note(row: dict[str, Any]) -> str:
    """The times of a row, or why it has none; where the norm is folded there is no backward pass."""
    times = [f"{row[key]:.1f}" for key in ("forward_us", "forward_backward_us") if key in row]
    return str(row["failed"]) if "failed" in row else " | ".join(times) + " us"


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
                "memory": last["peak_bytes"] / first["peak_bytes"],
            }
        )
    return growth


@app.command("loss", cls=Command)
@spoken
def loss(
    device: Where = Device.cpu,
    vocabularies: Annotated[str | None, typer.Option(help="Sizes, comma-separated; seven by default.")] = None,
    out: Out = None,
) -> None:
    """What a vocabulary costs: time of the loss and its gradients, in all and a column.

    Example: transnormer bench loss --device cuda --out results/bench/loss-h200.json
    """
    typed = parse_lengths(vocabularies, "--vocabularies") if vocabularies else None
    load_torch()
    from transnormer.bench.loss import TOKENS, VOCABULARIES, WIDTH, measure_loss
    from transnormer.bench.record import recorded, write_record
    from transnormer.bench.timing import require_device

    where, sizes = require_device(device.value), typed or list(VOCABULARIES)
    settings = {"device": where.type, "tokens": TOKENS[where.type], "width": WIDTH, "vocabularies": sizes}
    rows = []
    for row in recorded(measure_loss(sizes, where), out, "loss", settings):
        rows.append(row)
        print_note(f"{row['vocabulary']:,} columns  {row['milliseconds']:.2f} ms")
    cells = [
        [f"{row['vocabulary']:,}", f"{row['milliseconds']:.2f}", f"{row['microseconds_a_column']:.3f}"] for row in rows
    ]
    print_table(["vocabulary", "loss and gradients, ms", "us a column"], cells)
    if out:
        print_text(write_record(out, "loss", settings, rows))


@app.command("speed", cls=Command)
@spoken
def speed(
    device: Where = Device.cpu,
    lengths: Annotated[str, typer.Option(help="Sequence lengths, k = 1024.")] = "1k,2k,3k,4k,5k",
    methods: Annotated[str | None, typer.Option(help="Comma-separated; all that can run by default.")] = None,
    setting: Annotated[
        str, typer.Option(help="Model and batch: paper, skyformer, tiny, lm, enwik8, 350m or 1b.")
    ] = "paper",
    execution: Annotated[
        Execution, typer.Option(help="Steps op by op, compiled, or compiled and as one CUDA graph.")
    ] = Execution.eager,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Train with layers that the backward pass recomputes.")
    ] = False,
    limit: Annotated[
        float,
        typer.Option(
            help="Seconds to compile and measure one step before the next best execution is tried.", callback=_seconds
        ),
    ] = 300.0,
    compile_jobs: Annotated[
        int, typer.Option(min=1, help="Steps that are compiled side by side; they are measured one at a time.")
    ] = 1,
    out: Out = None,
) -> None:
    """The paper's speed table: training and inference steps per second of every method, in one run.

    A method that cannot run in the execution asked for runs in the next best; its row and the table say so, and why.

    Example: transnormer bench speed --device cuda --execution cuda_graph --compile-jobs 8 --out speed.json
    """
    from transnormer.bench.settings import known_methods

    wanted, chosen = parse_lengths(lengths), choose_names("--methods", methods, known_methods(setting))
    load_torch()  # all names were right
    from transnormer.bench.record import recorded, write_record
    from transnormer.bench.speed import describe, measure_speed
    from transnormer.bench.speed_table import exponents, markdown
    from transnormer.bench.timing import require_device

    where = require_device(device.value)
    settings = {
        **describe(setting, where, execution=execution.value, gradient_checkpointing=gradient_checkpointing),
        "lengths": wanted,
    }
    print_text("  ".join(f"{key}={value}" for key, value in settings.items()))
    rows: list[dict[str, Any]] = []
    measured = measure_speed(
        setting,
        chosen,
        wanted,
        where,
        execution=execution.value,
        gradient_checkpointing=gradient_checkpointing,
        limit=limit,
        compile_jobs=compile_jobs,
        note=print_note,
    )
    for row in recorded(measured, out, "speed", settings):
        rows.append(row)
        print_note(f"{len(rows)}/{len(chosen) * len(wanted)}  {row['method']}  T={row['length']:,}  {_speed_note(row)}")
    slopes = exponents(rows)
    table = markdown(rows, slopes)
    print_text(table)
    if out:
        print_text(write_record(out, "speed", settings, rows, table, exponents=slopes))


def _speed_note(row: dict[str, Any]) -> str:
    """A row in one line: steps per second, and tokens per second where they are language."""
    parts = []
    for kind in ("train", "inference"):
        if f"{kind}_failed" in row:
            parts.append(f"{kind} {row[f'{kind}_failed']}")
            continue
        parts.append(f"{row[f'{kind}_steps_per_second']:.2f} {kind} steps/s ({row[f'{kind}_execution']})")
    if tokens := row.get("train_tokens_per_second"):
        share = row["train_utilisation"]
        parts.append(f"{tokens:,.0f} tokens/s" + ("" if share is None else f" at {share:.1%} of the peak"))
    return "  ".join(parts)

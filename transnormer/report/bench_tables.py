"""Tables of measurements, each with its caption, from the records of `transnormer bench` and `make demo` alone.

A function takes the folder of results and gives Markdown, or None where its record is not there.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transnormer.experiments.record import machine_of
from transnormer.experiments.table import NONE
from transnormer.markdown import markdown_table
from transnormer.report.markdown import read_record

Section = Callable[[Path], str | None]


def _from(file: str) -> Callable[[Callable[[dict[str, Any]], str]], Section]:
    """Make a section of a function that takes the record in this file of the results."""

    def section_of(text_of: Callable[[dict[str, Any]], str]) -> Section:
        def section(results: Path) -> str | None:
            record = read_record(results / file)
            return None if record is None else text_of(record)

        return section

    return section_of


@_from("demo.json")
def demo(record: dict[str, Any]) -> str:
    rows = [[str(value) for value in row] for row in record["rows"]]
    return (
        f"**`make demo`** ({record['environment']['hardware']['cpu']}, {record['tokens']:,} tokens for each model, at "
        f"its own best learning rate of three; {record['protocol']}):\n\n{markdown_table(record['columns'], rows)}\n"
    )


@_from("bench/ops-cpu.json")
def growth(record: dict[str, Any]) -> str:
    rows = [[row["case"], f"{row['time']:.1f}×", f"{row['memory']:.1f}×"] for row in record["growth"]]
    lengths = record["settings"]["lengths"]
    factor = f"T × {max(lengths) // min(lengths)}"
    return (
        f"**Linear in the length**: forward + backward from T = {min(lengths):,} to {max(lengths):,} on the CPU "
        f"({command_of(record)}):\n\n{markdown_table(['op', f'time, {factor}', f'memory, {factor}'], rows)}\n"
    )


@_from("bench/ops-h200.json")
def kernels(record: dict[str, Any]) -> str:
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for row in record["rows"]:
        case, by = row["case"], row["by"]
        full = case == "full softmax causal"  # what a vanilla transformer calls: not ours
        if by == ("sdpa" if full else "triton") and "forward_us" in row:
            times.setdefault(row["shape"], {})["PyTorch's SDPA, causal" if full else case] = row
    cases = list(dict.fromkeys(case for row in times.values() for case in row))

    def shown(row: dict[str, Any] | None) -> str:
        return f"{row['forward_us']:.0f} / {row['forward_backward_us']:.0f}" if row else NONE

    rows = [[shape, *(shown(row.get(case)) for case in cases)] for shape, row in times.items()]
    return (
        f"**The two attentions as kernels** ({machine_of(record)}, bf16, batch x length, 8 heads of 64 (LM), 16 of 128 "
        "(LLM), 2 of 32 (LRA); whole op with feature map and norm, rela is ReLU attention; microseconds forward / "
        f"forward + backward; {command_of(record)}):\n\n{markdown_table(['shape', *cases], rows)}\n"
    )


@_from("bench/speed-lm.json")
def training(record: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['method']}, T = {row['length']:,}",
            f"{row['train_tokens_per_second'] / 1e6:.2f} M",
            f"{100 * row['train_utilisation']:.0f} %",
            f"{row['train_peak_bytes'] / 2**30:.1f} GiB",
        ]
        for row in record["rows"]
    ]
    settings = record["settings"]
    dropout = f"dropout {settings['dropout']}" if settings.get("dropout") else "no dropout"
    return (
        f"**Training a language model** ({machine_of(record)}, {settings['about']}, {dropout}, "
        f"{settings['precision']}; {command_of(record)}):\n\n"
        + markdown_table(["model", "tokens/s", "of the GPU's peak FLOPs", "peak memory"], rows)
        + "\n"
    )


def large_models(results: Path) -> str | None:
    """The sizes of real use, a record for each: the paper's method beside softmax in the shell of today."""
    found = [record for size in ("350m", "1b") if (record := read_record(results / "bench" / f"speed-{size}.json"))]
    rows = [
        [
            f"{row['method']}-{record['settings']['setting']}",
            f"{row['length']:,}",
            f"{row['train_tokens_per_second']:,.0f}",
            _beside_llama(row, record),
            f"{100 * row['train_utilisation']:.0f} %",
            f"{row['train_peak_bytes'] / 2**30:.1f} GiB",
            "yes" if record["settings"]["gradient_checkpointing"] else "no",
        ]
        for record in found
        for row in sorted(record["rows"], key=lambda row: row["length"])
    ]
    if not rows:
        return None
    columns = ["model", "T", "tokens/s", "× llama", "of the GPU's peak FLOPs", "peak memory", "checkpointing"]
    commands = ", ".join(command_of(record) for record in found)
    return (
        f"**Training at the sizes of real use** ({machine_of(found[0])}, one GPU, {found[0]['settings']['tokens']:,} "
        f"tokens a step, {found[0]['settings']['precision']}; llama is softmax attention, not in the paper; "
        f"{commands}):\n\n{markdown_table(columns, rows)}\n"
    )


def _beside_llama(row: dict[str, Any], record: dict[str, Any]) -> str:
    """The tokens of a method for each of llama's, at that length of that record."""
    for other in record["rows"]:
        if (other["method"], other["length"]) == ("llama", row["length"]) and row["method"] != "llama":
            return f"{row['train_tokens_per_second'] / other['train_tokens_per_second']:.2f}"
    return NONE


@_from("bench/ops-packed.json")
def packing(record: dict[str, Any]) -> str:
    rows = []
    for entry in record["summary"]:
        if any(part.get("best_peer") == "apart" for part in entry.values() if isinstance(part, dict)):
            passes = [entry[each] for each in ("forward", "forward_backward")]
            shares = [
                f"{part['us']:.0f} / {part['best_peer_us']:.0f} ({1 / part['x_best_peer']:.2f})" for part in passes
            ]
            rows.append([entry["case"].removesuffix(" packed"), entry["shape"], *shares])
    columns = ["op", "sequences × length", "forward", "forward + backward"]
    return (
        f"**Packed sequences** beside the same ones apart, as rows of a batch ({machine_of(record)}, bf16, "
        "microseconds packed / apart, in brackets the share of the tokens a second; op with feature map and norm; "
        f"{command_of(record)}, commit {(record['environment']['commit'] or NONE)[:12]}):\n\n"
        f"{markdown_table(columns, rows)}\n"
    )


def training_runs(results: Path) -> str | None:
    """What `transnormer train` itself made, evaluations and checkpoints beside it: results/train/*.json."""
    found = {file.stem: read_record(file) for file in sorted((results / "train").glob("*.json"))}
    rows = [
        [
            name,
            f"{result['parameters'] / 1e6:.1f} M",
            f"{result['tokens_per_second'] / 1e6:.2f} M",
            f"{result['peak_memory_bytes'] / 2**30:.1f} GiB",
            f"{result['steps']:,}",
        ]
        for name, result in found.items()
        if result
    ]
    if not rows:
        return None
    columns = ["run", "parameters", "tokens/s", "peak memory, evaluations included", "steps"]
    return (
        "**`transnormer train`** as it runs, one CUDA graph a step (results/train: `result.json` of runs of lm/text "
        "with t2-lm on GPT-2's 50,257 tokens at 128 × 512 and 8 × 8,192 tokens, and of lm/wikitext103 on synthetic "
        f"tokens of its 267,744):\n\n{markdown_table(columns, rows)}\n"
    )


@_from("bench/loss-h200.json")
def vocabularies(record: dict[str, Any]) -> str:
    rows = [
        [f"{row['vocabulary']:,}", f"{row['milliseconds']:.2f}", f"{row['microseconds_a_column']:.3f}"]
        for row in record["rows"]
    ]
    return (
        f"**Any vocabulary at the same price**: loss and gradients of {record['settings']['tokens']:,} tokens of width "
        f"{record['settings']['width']} ({machine_of(record)}, bf16; {command_of(record)}):\n\n"
        f"{markdown_table(['vocabulary', 'ms', 'µs a column'], rows)}\n"
    )


@_from("bench/speed-paper.json")
def speed_over_length(record: dict[str, Any]) -> str:
    settings, kinds = record["settings"], ("train", "inference")
    found = {(row["method"], row["length"]): row for row in record["rows"]}
    methods = list(dict.fromkeys(method for method, _ in found))
    rates = {
        (method, length, kind): row.get(f"{kind}_steps_per_second")
        for (method, length), row in found.items()
        for kind in kinds
    }

    def shown(method: str, length: int, kind: str) -> str:
        rate = rates.get((method, length, kind))
        if rate is None:
            return NONE
        fastest = max(rates.get((other, length, kind)) or 0.0 for other in methods)
        how = found[method, length][f"{kind}_execution"]
        text = f"**{rate:,.0f}**" if rate == fastest else f"{rate:,.0f}"
        return text if how == settings["execution"] else f"{text} ({how})"

    rows = [
        [method, *(" / ".join(shown(method, length, kind) for kind in kinds) for length in settings["lengths"])]
        for method in methods
    ]
    lengths = [f"T = {length:,}" for length in settings["lengths"]]
    return (
        f"**The paper's speed table** ({machine_of(record)}, {settings['num_hidden_layers']} layers of width "
        f"{settings['hidden_size']}, batch {settings['batch']}, {settings['precision']}; training / inference steps a "
        f"second of {len(methods)} methods; {command_of(record)}):\n\n"
        f"{markdown_table(['method', *lengths], rows)}\n"
    )


@_from("bench/decode.json")
def decoding(record: dict[str, Any]) -> str:
    settings = record["settings"]
    names = [settings["preset"], settings["against"]]
    found = {(row["preset"], row["batch"], row["context"]): row for row in record["rows"]}
    rows = []
    for batch in settings["batches"]:
        for context in settings["contexts"]:
            pair = [found[name, batch, context] for name in names]
            rates = [row.get("tokens_per_second") for row in pair]
            shown = ["does not fit" if rate is None else f"{rate:,.0f}" for rate in rates]
            ratio = f"{rates[0] / rates[1]:.1f}×" if all(rates) else NONE
            states = [f"{row['state_bytes_per_sequence'] / 2**20:,.2f} MiB" for row in pair]
            rows.append([f"{batch}", f"{context:,}", *shown, ratio, *states])
    # A preset's own vocabulary may be another: what was measured says how large it was.
    sizes = " and ".join(f"{found[name, batch, context]['parameters'] / 1e6:.1f} M" for name in names)
    columns = ["batch", "context", *(f"{name}, tokens/s" for name in names), "ratio"]
    columns += [f"{name}, state a sequence" for name in names]
    return (
        f"**Decoding** ({machine_of(record)}, {settings['dtype']}, {settings['step']}; {sizes} parameters, "
        f"vanilla's step recorded anew for each length; {command_of(record)}):\n\n"
        f"{markdown_table(columns, rows)}\n"
    )


def command_of(record: dict[str, Any]) -> str:
    """What was typed for a record, but for where it went."""
    words = list(record["environment"]["command"])
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return f"`{shlex.join(words)}`"

"""Speed and kernels: the paper's speed table beside ours, as charts and tables, and all other measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transnormer.experiments.paper import speed
from transnormer.experiments.record import machine_of
from transnormer.experiments.table import NONE
from transnormer.report import bench_tables
from transnormer.report.bench_tables import command_of
from transnormer.report.curves import Curve, draw_curves
from transnormer.report.kernel_tables import goal_table, peer_table
from transnormer.report.markdown import read_record
from transnormer.report.page import Cell, Page, Picture, Section, Table

_KINDS = {"train": "Training", "inference": "Inference"}
_EXECUTIONS = {"eager": "op by op", "compile": "compiled", "cuda_graph": "a CUDA graph a step"}
_PAPERS = "The paper's numbers are of an A6000: compare the order and how it changes with the length, not the size."
_SECTIONS: dict[str, bench_tables.Section] = {
    "Training a language model": bench_tables.training,
    "Training at the sizes of real use": bench_tables.large_models,
    "Training runs": bench_tables.training_runs,
    "The loss over vocabularies": bench_tables.vocabularies,
    "Decoding": bench_tables.decoding,
    "The two attentions as kernels": bench_tables.kernels,
    "Packed sequences": bench_tables.packing,
    "Growth with the length": bench_tables.growth,
    "The demo": bench_tables.demo,
}
_KERNELS: dict[str, tuple[str, str, Callable[[dict[str, Any]], str]]] = {
    "Kernels beside others'": (
        "ops-h200.json",
        "Microseconds forward, and forward + backward, of ours and of every peer.",
        peer_table,
    ),
    "Kernels and what the hardware allows": (
        "ops-h200-ours.json",
        "Forward, and forward + backward, as multiples of the floor: the bytes that must move, divided by the copy "
        "bandwidth of the same run. In bold what meets the goal.",
        goal_table,
    ),
}


def speed_records(results: Path) -> dict[str, dict[str, Any]]:
    """Records of `transnormer bench speed` in the setting of the paper, by how they ran; of equals, with their file."""
    files = sorted((results / "bench").glob("speed-*.json"), key=lambda file: file.stem)
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        record = read_record(file)
        if record and record["settings"]["setting"] == "paper":
            name = _EXECUTIONS[record["settings"].get("execution", "eager")]  # the oldest do not say it
            found[f"{name}, {file.stem}" if name in found else name] = record
    return found


def speed_page(results: Path) -> Page | None:
    """None where nothing was measured."""
    sections = [*_speed_table(speed_records(results)), *_measurements(results)]
    lead = "Steps, tokens and microseconds, each measured by the command that stands beside it."
    return Page("Speed and kernels", lead, sections) if sections else None


def _speed_table(records: dict[str, dict[str, Any]]) -> Iterator[Section]:
    for name, record in records.items():
        settings = record["settings"]
        about = (
            f"{machine_of(record)}, {settings['num_hidden_layers']} layers of width {settings['hidden_size']}, batch "
            f"{settings['batch']}, {settings['precision']}; {command_of(record)}, commit "
            f"{(record['environment']['commit'] or NONE)[:12]}."
        )
        for kind, title in _KINDS.items():
            yield Section(
                f"{title}, steps a second ({name})",
                text=f"{about} {_PAPERS}",
                pictures=[Picture(svg=_chart(record, kind))],
                table=_beside(record, kind),
            )


def _rates(record: dict[str, Any], kind: str) -> dict[str, dict[int, float]]:
    """By method and length; what does not fit into memory has none."""
    rates: dict[str, dict[int, float]] = {}
    for row in record["rows"]:
        rates.setdefault(row["method"], {})
        if rate := row.get(f"{kind}_steps_per_second"):
            rates[row["method"]][row["length"]] = rate
    return rates


def _chart(record: dict[str, Any], kind: str) -> str:
    """In the order of the record, so that a method has the same colour in both of its charts."""
    curves = [Curve(method, list(at), list(at.values()), dots=True) for method, at in _rates(record, kind).items()]
    return draw_curves(curves, x_label="length in tokens", y_label="steps a second")


def _beside(record: dict[str, Any], kind: str) -> Table:
    """Ours and the paper's at each length; the fastest of ours stands out."""
    rates, papers, lengths = _rates(record, kind), speed.PAPER[kind], record["settings"]["lengths"]
    fastest = {length: max((at.get(length, 0.0) for at in rates.values()), default=0.0) for length in lengths}
    rows = []
    for method, at in rates.items():
        row: list[str | Cell] = [method]
        for length in lengths:
            rate, paper = at.get(length), papers.get(method, {}).get(length)
            row.append(Cell(f"{rate:,.1f}", strong=rate == fastest[length]) if rate else NONE)
            row.append(f"{paper:,.2f}" if paper else NONE)
            row.append(f"{rate / paper:,.1f}" if rate and paper else NONE)
        rows.append(row)
    headings = [text for length in lengths for text in (f"{length:,}", f"{length:,}, paper", f"{length:,}, ratio")]
    return Table(["method", *headings], rows)


def _measurements(results: Path) -> Iterator[Section]:
    for title, section in _SECTIONS.items():
        if text := section(results):
            yield Section(title, text=text)
    for title, (file, about, table_of) in _KERNELS.items():
        if record := read_record(results / "bench" / file):
            yield Section(title, text=f"{about} {machine_of(record)}; {command_of(record)}.\n\n{table_of(record)}")

"""The tables of kernels in docs/performance.md, generated from the records of `transnormer bench ops`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transnormer.markdown import markdown_table
from transnormer.report.markdown import read_record, replaced

_CASES = {
    "norm causal": "NormAttention, causal",
    "norm full": "NormAttention, bidirectional",
    "diag softmax causal": "DiagAttention, softmax, causal",
    "diag softmax full": "DiagAttention, softmax, bidirectional",
    "diag rela causal": "DiagAttention, ReLA, causal",
    "diag rela full": "DiagAttention, ReLA, bidirectional",
}
_PEERS = {
    "fla-fused": "{version}, fused chunks",
    "fla-chunk": "{version}, chunks",
    "flex-tuned": "FlexAttention, tiles of one block, searched for",
    "flex": "FlexAttention",
    "sdpa": "SDPA on blocks",
    "sdpa-cudnn": "SDPA on blocks, cuDNN",
    "compile": "torch.compile of plain PyTorch",
}
_VARIANTS = {"triton": "", "triton-folded": ", norm folded"}
_PARTS = ("forward", "forward_backward")


def with_kernels(page: str, results: Path) -> str:
    """The page with its tables as the records say now."""
    bench = results / "bench"
    beside, ours = read_record(bench / "ops-h200.json"), read_record(bench / "ops-h200-ours.json")
    if beside is not None:
        page = replaced(page, "kernel peers", peer_table(beside))
    return page if ours is None else replaced(page, "kernel goals", goal_table(ours))


def peer_table(record: dict[str, Any]) -> str:
    """Microseconds of ours and of every peer."""
    times = {
        (row["case"], row["by"], row["shape"]): f"{_digits(row['forward_us'])}, {_digits(row['forward_backward_us'])}"
        for row in record["rows"]
        if "forward_us" in row
    }
    shapes, versions = record["settings"]["shapes"], record["settings"]["peers"]
    rows = []
    for case, name in _CASES.items():
        labels = {"triton": f"**{name}: ours**"} | {
            by: text.format(version=versions[by]) for by, text in _PEERS.items()
        }
        for by, label in labels.items():
            if any((case, by, shape) in times for shape in shapes):
                rows.append([label, *(times.get((case, by, shape), "–") for shape in shapes)])
    return markdown_table(["", *map(_named, shapes)], rows)


def goal_table(record: dict[str, Any]) -> str:
    """Multiples of the floor forward and forward + backward, bold where they meet the goal."""
    found = {(row["case"], row["by"], row["shape"]): row for row in record["summary"]}
    shapes = record["settings"]["shapes"]
    rows = []
    for case, name in _CASES.items():
        for by, variant in _VARIANTS.items():
            if any((case, by, shape) in found for shape in shapes):
                rows.append([name + variant, *(_multiples(found[case, by, shape]) for shape in shapes)])
        goals = [found[case, "triton", shape] for shape in shapes]
        rows.append(["*goal*", *(", ".join(f"{row[part]['goal_x_floor']:.2f}" for part in _PARTS) for row in goals)])
    return markdown_table(["", *map(_named, shapes)], rows)


def _multiples(row: dict[str, Any]) -> str:
    def one(part: dict[str, float]) -> str:
        text = f"{part['x_floor']:.2f}"
        return f"**{text}**" if part["x_floor"] <= part["goal_x_floor"] else text

    return ", ".join(one(row[part]) for part in _PARTS if part in row)


def _digits(microseconds: float) -> str:
    return f"{microseconds:.0f}" if microseconds >= 100 else f"{microseconds:.1f}"


def _named(shape: str) -> str:
    return shape.removeprefix("LM ").replace("x", "×")

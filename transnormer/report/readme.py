"""The README's table of results, generated from the files in results/ between two markers.

python -m transnormer.report.readme README.md results
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_BEGIN, _END = "<!-- results:begin -->", "<!-- results:end -->"


def with_results(readme: str, results: Path) -> str:
    """The text with everything between the markers replaced by what the result files say now."""
    sections = [
        section for section in (_demo(results), _growth(results), _kernels(results), _speed(results)) if section
    ]
    return re.sub(f"{_BEGIN}.*{_END}", lambda _: "\n".join([_BEGIN, *sections, _END]), readme, flags=re.DOTALL)


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _table(columns: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _demo(results: Path) -> str | None:
    record = _read(results / "demo.json")
    if record is None:
        return None
    rows = [[str(cell) for cell in row] for row in record["rows"]]
    return (
        f"**`make demo`** ({record['environment']['hardware']['cpu']}, {record['tokens']:,} tokens each, "
        f"{record['protocol']}):\n\n{_table(record['columns'], rows)}\n"
    )


def _growth(results: Path) -> str | None:
    record = _read(results / "bench" / "ops-cpu.json")
    if record is None:
        return None
    rows = [[row["case"], f"{row['time']:.1f}×", f"{row['memory']:.1f}×"] for row in record["growth"]]
    lengths = record["settings"]["lengths"]
    factor = f"T × {max(lengths) // min(lengths)}"
    return (
        f"**Linear in the length**: forward + backward from T = {min(lengths):,} to {max(lengths):,} on the CPU "
        f"(`transnormer bench ops`):\n\n{_table(['op', f'time, {factor}', f'memory, {factor}'], rows)}\n"
    )


def _kernels(results: Path) -> str | None:
    record = _read(results / "bench" / "ops-h200.json")
    if record is None:
        return None
    times: dict[str, dict[str, dict[str, Any]]] = {}
    for row in record["rows"]:
        ours = "sdpa" if row["case"] == "full softmax causal" else "triton"
        if row["by"] == ours and "forward_us" in row:
            times.setdefault(row["shape"], {})[row["case"]] = row
    cases = list(dict.fromkeys(case for row in times.values() for case in row))

    def cell(row: dict[str, Any] | None) -> str:
        return f"{row['forward_us']:.0f} / {row['forward_backward_us']:.0f}" if row else "–"

    rows = [[shape, *(cell(row.get(case)) for case in cases)] for shape, row in times.items()]
    where = record["environment"]["hardware"]["gpus"][0]
    return (
        f"**The two attentions as kernels** ({where}, bf16, batch x length, whole op "
        "with feature map and norm; microseconds forward / forward + backward; `transnormer bench ops --device cuda`):"
        f"\n\n{_table(['shape', *cases], rows)}\n"
    )


def _speed(results: Path) -> str | None:
    parts = []
    for path in sorted((results / "bench").glob("speed-paper*.json")):
        record = _read(path)
        assert record is not None
        settings, hardware = record["settings"], record["environment"]["hardware"]
        where = hardware["gpus"][0] if settings["device"] == "cuda" else hardware["cpu"]
        shape = f"{settings['num_hidden_layers']} layers × {settings['hidden_size']}"
        heads = f"{settings['num_attention_heads']} heads, blocks of {settings['block_size']}"
        title = f"**Speed, setting `{settings['setting']}`** ({where}, batch {settings['batch']}, {shape}, {heads}, "
        table = path.with_suffix(".md").read_text(encoding="utf-8").strip()
        parts.append(f"{title}{settings['precision']}):\n\n{table}\n")
    return "\n".join(parts) or None


if __name__ == "__main__":
    target, folder = Path(sys.argv[1]), Path(sys.argv[2])
    target.write_text(with_results(target.read_text(encoding="utf-8"), folder), encoding="utf-8")

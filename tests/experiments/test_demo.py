"""The demo as a user runs it, made short: three runs, a table, a sample, a page; a second call takes them up again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from transnormer.config.load import load_config
from transnormer.experiments.demo import METHODS, RATES
from transnormer.experiments.paper.demo_rates import DemoRates, best_rates
from transnormer.experiments.record import read_records

ROOT = Path(__file__).resolve().parents[2]
SHORT = [
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.num_hidden_layers=2",
    "train.steps=4",
    "train.log_every=1",
    "optim.warmup_steps=1",
    "train.batch_size=2",
    "data.eval_windows=2",
    "data.limit_bytes=200000",
]


def demo(program: tuple[str, ...], out: Path) -> str:
    command = [*program, "demo", "--out", str(out), *SHORT]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_demo(tmp_path, forked_command):
    (tmp_path / "demo" / "t2-tiny").mkdir(parents=True)  # an empty folder is as good as none
    first = demo(forked_command, tmp_path / "demo")
    names = ("t2-tiny", "llama-tiny", "linear_elu-tiny")
    twins = {name: json.loads((tmp_path / "demo" / name / "result.json").read_text()) for name in names}
    assert len({result["tokens"] for result in twins.values()}) == 1
    for name, result in twins.items():
        assert f"{result['parameters']:,}" in first
        assert f"{result['metrics']['bits_per_byte']:.3f}" in first
        assert name in first
    table = {line.split()[0]: line.split() for line in first.splitlines() if "KiB" in line}
    t2, llama = table["t2-tiny"], table["llama-tiny"]
    assert t2[-4:-2] == t2[-2:], "T2's state is as large at 16k tokens as at 1k"
    assert llama[-4:-2] != llama[-2:]
    page = (tmp_path / "demo" / "index.html").read_text()
    assert page.count("<svg") == 3, "losses, gradient norms, dilution"
    assert page.count("data:image/png;base64,") == 3, "attention maps"
    assert page.count("def read_file(path") == 3, "a sample of each"
    record = json.loads((tmp_path / "demo" / "demo.json").read_text())
    for row, twin in zip(record["rows"], record["dilution"]["runs"], strict=True):
        assert f"{twin['mean']['area']:.3f}" in row
        assert row[0] == twin["run"]

    second = demo(forked_command, tmp_path / "demo")
    assert "is finished" in second
    assert second.splitlines()[-1] == first.splitlines()[-1]


def test_a_demo_with_nothing_to_draw_is_refused_at_once(tmp_path, forked_command):
    command = [*forked_command, "demo", "--out", str(tmp_path / "demo"), "train.steps=5", "optim.warmup_steps=1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "train.log_every=1" in done.stderr
    assert not (tmp_path / "demo").exists()


def test_rates_of_the_demo_are_the_best_of_the_records():
    records = read_records(ROOT / "results" / "demo-rates")
    assert {record.steps for record in records} == {load_config("demo", []).train.steps}
    assert best_rates(records) == RATES
    lines = [line.strip("| ").split(" | ") for line in DemoRates().page(records).splitlines() if line.startswith("| ")]
    assert lines[0] == ["rate", *METHODS]
    bold = {method: line[0] for line in lines for method, cell in zip(lines[0], line, strict=False) if "**" in cell}
    assert bold == RATES

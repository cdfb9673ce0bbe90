"""Tables of measurements, from hand-made records: what was measured another way than asked for says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transnormer.report import bench_tables

ENVIRONMENT = {"command": ["transnormer", "bench", "speed", "--out", "somewhere"], "hardware": {"gpus": ["A GPU"]}}


def write(results: Path, name: str, settings: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    (results / "bench").mkdir(exist_ok=True)
    record = {"settings": settings, "rows": rows, "environment": ENVIRONMENT}
    (results / "bench" / f"{name}.json").write_text(json.dumps(record))


def test_the_papers_speed_table(tmp_path: Path) -> None:
    def row(method: str, train: float, inference: float, **changes: Any) -> dict[str, Any]:
        found = {"method": method, "length": 1024, "train_execution": "cuda_graph"}
        found |= {"inference_execution": "cuda_graph"}
        return {**found, "train_steps_per_second": train, "inference_steps_per_second": inference, **changes}

    settings = {
        "execution": "cuda_graph",
        "lengths": [1024, 2048],
        "num_hidden_layers": 6,
        "hidden_size": 128,
        "batch": 20,
    }
    rows = [row("t2", 549.2, 1810.3), row("reformer", 100.0, 1900.0, train_execution="compile")]
    write(tmp_path, "speed-paper", {**settings, "precision": "bf16"}, rows)
    text = bench_tables.speed_over_length(tmp_path)
    assert text is not None
    assert "(A GPU, 6 layers of width 128, batch 20, bf16; training / inference steps a second of 2 methods; " in text
    assert "`transnormer bench speed`)" in text
    assert "| t2 | **549** / 1,810 | – / – |" in text
    assert "| reformer | 100 (compile) / **1,900** | – / – |" in text


def test_training(tmp_path: Path) -> None:
    assert bench_tables.training(tmp_path) is None
    row = {"method": "t2", "length": 8192, "train_tokens_per_second": 1.57e6, "train_utilisation": 0.434}
    settings = {"about": "a language model", "dropout": 0.1, "precision": "bf16"}
    write(tmp_path, "speed-lm", settings, [{**row, "train_peak_bytes": 2**33}])
    text = bench_tables.training(tmp_path)
    assert text is not None
    assert "| t2, T = 8,192 | 1.57 M | 43 % | 8.0 GiB |" in text
    assert "dropout 0.1" in text


def test_large_models(tmp_path: Path) -> None:
    assert bench_tables.large_models(tmp_path) is None
    settings = {"setting": "350m", "tokens": 32768, "precision": "bf16", "gradient_checkpointing": False}
    t2 = {"method": "t2", "length": 8192, "train_utilisation": 0.46, "train_peak_bytes": 2**34}
    llama = {**t2, "method": "llama", "train_tokens_per_second": 100_000.0}
    write(tmp_path, "speed-350m", settings, [{**t2, "train_tokens_per_second": 170_000.0}, llama])
    text = bench_tables.large_models(tmp_path) or ""
    assert "| t2-350m | 8,192 | 170,000 | 1.70 | 46 % | 16.0 GiB | no |" in text
    assert "| llama-350m | 8,192 | 100,000 | – |" in text
    alone = [{**t2, "train_tokens_per_second": 70_000.0}]
    write(tmp_path, "speed-1b", {**settings, "setting": "1b", "gradient_checkpointing": True}, alone)
    assert "| t2-1b | 8,192 | 70,000 | – | 46 % | 16.0 GiB | yes |" in (bench_tables.large_models(tmp_path) or "")


def test_packed_sequences_stand_beside_rows(tmp_path: Path) -> None:
    def entry(case: str, peer: str | None) -> dict[str, Any]:
        part = {"us": 44.0, "best_peer": peer, "best_peer_us": 40.0, "x_best_peer": 1.1}
        return {"case": case, "shape": "LM 64x512", "forward": part, "forward_backward": part}

    (tmp_path / "bench").mkdir()
    summary = [entry("norm causal", None), entry("norm causal packed", "apart")]
    record = {"summary": summary, "environment": {**ENVIRONMENT, "commit": "abcdef0123456789"}}
    (tmp_path / "bench" / "ops-packed.json").write_text(json.dumps(record))
    text = bench_tables.packing(tmp_path) or ""
    assert "| norm causal | LM 64x512 | 44 / 40 (0.91) | 44 / 40 (0.91) |" in text
    assert text.count("| norm causal |") == 1
    assert "commit abcdef012345)" in text


def test_decoding(tmp_path: Path) -> None:
    settings = {"preset": "t2-lm", "against": "vanilla-lm", "batches": [1], "contexts": [1024], "dtype": "bfloat16"}
    row = {"batch": 1, "context": 1024, "parameters": 44_700_000, "state_bytes_per_sequence": 2**20}
    rows = [{**row, "preset": "t2-lm", "tokens_per_second": 100.0}, {**row, "preset": "vanilla-lm"}]
    write(tmp_path, "decode", {**settings, "step": "CUDA graph"}, rows)
    assert "| 1 | 1,024 | 100 | does not fit | – | 1.00 MiB | 1.00 MiB |" in (bench_tables.decoding(tmp_path) or "")
    rows[1]["tokens_per_second"] = 50.0
    write(tmp_path, "decode", {**settings, "step": "CUDA graph"}, rows)
    assert "| 1 | 1,024 | 100 | 50 | 2.0× |" in (bench_tables.decoding(tmp_path) or "")


def test_the_demo(tmp_path: Path) -> None:
    environment = {"hardware": {"gpus": [], "cpu": "a processor"}}
    record = {"columns": ["model", "rate"], "rows": [["t2-tiny", 0.004]], "tokens": 1234, "protocol": "windows"}
    (tmp_path / "demo.json").write_text(json.dumps({**record, "environment": environment}))
    text = bench_tables.demo(tmp_path) or ""
    assert "(a processor, 1,234 tokens for each model, at its own best learning rate of three; windows):" in text
    assert "| t2-tiny | 0.004 |" in text

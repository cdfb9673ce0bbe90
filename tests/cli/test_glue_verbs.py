"""GLUE as a user types it: prepare, look, train, predict, and one line for what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from glue_files import write_task


def test_from_files_to_a_submission(cli: Callable, glue_bpe: Path, tmp_path: Path) -> None:
    source, store, run = write_task(tmp_path / "RTE", "rte"), tmp_path / "store", tmp_path / "run"
    done = cli("data", "prepare", "glue/rte", "--source", source, "--tokenizer", f"roberta:{glue_bpe}", "--out", store)
    assert done.code == 0, done.err
    assert f"use it: transnormer train glue/rte --out run model.init=PRETRAINED data.store={store}" in done.out
    assert "not the published set: train has 40 of 2,490" in done.out
    assert "max_length" in json.loads((store / "manifest.json").read_text())["meta"]
    shown = cli("data", "show", store, "--split", "test", "--count", 1)
    assert "example 0: no label" in shown.out
    assert "</s></s>" in shown.out
    assert "label entailment" in cli("data", "show", store, "--count", 9).out
    size = ["model.preset=t2-tiny", "model.hidden_size=16", "model.num_attention_heads=2", "model.num_hidden_layers=2"]
    done = cli("train", "glue/rte", "--out", run, f"data.store={store}", *size, "glue.epochs=1", "train.device=cpu")
    assert done.code == 0, done.err
    done = cli("eval", run, "--split", "test")
    assert done.code == 2
    assert "transnormer predict RUN --out FOLDER" in done.err
    done = cli("predict", run, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    lines = (tmp_path / "out" / "RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert len(lines) == 8
    assert {line.split("\t")[1] for line in lines[1:]} <= {"entailment", "not_entailment"}


def test_what_is_wrong_is_said_in_a_line(cli: Callable, glue_bpe: Path, tmp_path: Path) -> None:
    source = write_task(tmp_path / "QNLI", "qnli")
    lines = (source / "dev.tsv").read_text().splitlines()
    (source / "dev.tsv").write_text("\n".join([*lines[:4], "3\tonly a question\tentailment", *lines[5:]]))
    roberta = ("--tokenizer", f"roberta:{glue_bpe}", "--out", tmp_path / "store")
    done = cli("data", "prepare", "glue/qnli", "--source", source, *roberta)
    assert done.code == 5
    assert f"error: {source / 'dev.tsv'} line 5: 3 columns instead of 4" in done.err
    for arguments, words in {
        ("glue/sst", "--source", source, *roberta): "did you mean 'glue/sst2'?",
        ("glue/sst2", *roberta): "SST-2/ with train.tsv, dev.tsv, test.tsv (https://gluebenchmark.com/tasks)",
        ("glue/qnli", "--source", source, "--out", tmp_path / "store"): "needs a tokenizer",
        ("glue/qnli", "--source", source, "--seed", "1", *roberta): "--seed is for the lra tasks",
        ("glue/qnli", "--source", source, "--vocab-size", "9", *roberta): "--vocab-size is for text",
        ("lra/text", "--max-length", "9", "--out", tmp_path / "store"): "--max-length is not for lra/text",
        ("python", "--max-length", "9", "--out", tmp_path / "store"): "--max-length is for ",
    }.items():
        done = cli("data", "prepare", *arguments)
        assert done.code == 2, done.out
        assert words in done.err
    assert not (tmp_path / "store").exists()
    assert cli("predict", tmp_path, "--out", tmp_path / "out").code == 2


def test_stores_without_text_are_as_they_were(lra_store: Callable[[str], Path]) -> None:
    """A manifest that names no tokenizer has no such key: stores of older versions keep their digest."""
    assert "tokenizer" not in json.loads((lra_store("lra/listops") / "manifest.json").read_text())

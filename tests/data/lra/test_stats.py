"""What splits share and what trivial rules reach, counted by hand on tiny stores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from transnormer.cli.app import main
from transnormer.data.examples import ExampleStore
from transnormer.data.lra.prepare import prepare
from transnormer.data.lra.stats import baselines, shared


def text_store(folder: Path, test: list[str]) -> ExampleStore:
    """Forty reviews to train and validate on, each its own, and the given ones to test on, as 'label<tab>text'."""
    source = folder / "source"
    source.mkdir()
    rows = [f"{number % 2}\t{'aaab' if number % 2 else 'abbb'} {number:02}" for number in range(40)]
    (source / "train.tsv").write_text("\n".join(rows))
    (source / "test.tsv").write_text("\n".join(test))
    prepare("lra/text", folder / "store", source=source)
    return ExampleStore.open(folder / "store")


def test_examples_of_train_are_found_again(tmp_path: Path) -> None:
    rows = [f"{number % 2}\t{'aaab' if number % 2 else 'abbb'} {number:02}" for number in range(40)]
    store = text_store(tmp_path, [*rows, "1\tnew"])
    found = shared(store)
    train = len(store.split("train"))
    # All forty are in the test set; those that were held out for validation are not in train.
    assert found == {"valid": {"examples": 40 - train, "in train": 0}, "test": {"examples": 41, "in train": train}}


def test_rules_are_scored_on_test_and_made_of_train(tmp_path: Path) -> None:
    store = text_store(tmp_path, ["0\tabbb 99", "0\tabbb 98", "1\taaab 97", "1\taaab 96", "1\tabbb 95"])
    found = baselines(store)
    usual = int(np.bincount(store.split("train").labels).argmax())
    assert found["majority class"] == pytest.approx((store.split("test").labels == usual).mean())
    assert found["bag of tokens"] == pytest.approx(4 / 5)  # the last is labelled against its tokens
    assert found.keys() == {"majority class", "bag of tokens"}


def pair_store(folder: Path, **parts: list[tuple[int, str, str]]) -> ExampleStore:
    source = folder / "pairs"
    source.mkdir()
    for part, pairs in parts.items():
        lines = [f"{float(label)}\t{number}\t{number}\t{a}\t{b}" for number, (label, a, b) in enumerate(pairs)]
        (source / f"new_aan_pairs.{part}.tsv").write_text("\n".join(lines) + "\n")
    prepare("lra/retrieval", folder / "store", source=source)
    return ExampleStore.open(folder / "store")


def test_pairs_share_texts(tmp_path: Path) -> None:
    train = [(1, "citing", "famous"), (1, "other", "famous"), (0, "citing", "dull"), (0, "other", "dull")]
    test = [(1, "unseen", "famous"), (0, "unseen", "dull"), (0, "famous", "new"), (1, "citing", "famous")]
    store = pair_store(tmp_path, train=train, eval=[(1, "x", "y")], test=test)
    assert shared(store)["test"] == {
        "examples": 4,
        "in train": 1,
        "first text in train": 2,
        "second text in train": 3,
    }
    # As second texts 'famous' and 'dull' give themselves away; 'famous' as a first one does not: class 0, the usual.
    assert baselines(store)["texts as names"] == 1.0


def test_listops_has_its_root_operator(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store, record = tmp_path / "listops", tmp_path / "listops.json"
    prepare("lra/listops", store, limit=60, processes=1)
    with pytest.raises(SystemExit) as exit_:
        main(["data", "show", str(store), "--stats", "--out", str(record)])
    assert not exit_.value.code
    out = capfd.readouterr().out
    opened = ExampleStore.open(store)
    train, test = opened.split("train"), opened.split("test")
    hits = 0
    for index, label in enumerate(test.labels):
        same = [train.labels[n] for n in range(len(train)) if train.sequence(n)[0] == test.sequence(index)[0]]
        hits += label == (np.bincount(same).argmax() if same else np.bincount(train.labels).argmax())
    written = json.loads(record.read_text())
    assert written["baselines"]["root operator"] == pytest.approx(hits / len(test))
    assert written["digest"] == opened.digest
    assert written.keys() >= {"command", "date", "commit", "sizes"}
    assert f"root operator: test accuracy {100 * hits / len(test):.2f} (95 %: " in out
    assert written["label"] == "stand-in"  # sixty examples are not the task


def test_options_of_examples_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["data", "show", "lra/listops", "--stats", "--count", "3"])
    assert exit_.value.code == 2
    assert "--count is for examples, not for --stats" in capfd.readouterr().err

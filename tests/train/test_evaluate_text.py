"""A causal language model scored by any protocol, where the data have no tokenizer or another process takes part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_run import tiny_config
from token_store import new_store

from transnormer.errors import ConfigError, DataError
from transnormer.train.evaluate import evaluate_contexts, evaluate_text, open_subject
from transnormer.train.loop import evaluate_run, train
from transnormer.train.ranks import Ranks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on bare ids: no text, no tokenizer."""
    folder = tmp_path_factory.mktemp("ids")
    with new_store(folder / "store", vocab_size=20) as writer:
        for split, seed in (("train", 0), ("valid", 1)):
            steps = np.random.default_rng(seed).integers(1, 3, size=400)
            writer.append(split, np.cumsum(steps) % 20)
    config = tiny_config(folder / "store", data__eval_windows=None, train__steps=6, train__eval_every=6)
    train(config, folder / "run", show=False)
    return folder / "run"


def test_bare_ids_are_scored_per_token_as_one_stream(run: Path):
    subject = open_subject(run, None, "valid", ())
    scored = {stride: evaluate_text(subject, None, stride, carry=False) for stride in (None, 32, 8)}
    training = evaluate_run(run, "valid")
    assert scored[None]["metrics"] == scored[32]["metrics"] == pytest.approx(training["metrics"], rel=1e-6)
    assert scored[None]["protocol"] == training["protocol"]
    assert scored[None]["counts"] == training["counts"]
    assert scored[8]["metrics"]["loss"] != training["metrics"]["loss"]
    assert set(scored[8]["metrics"]) == {"loss", "perplexity", "accuracy"}
    assert scored[8]["counts"] == {"tokens": 399, "words": 0, "bytes": 0, "estimated": False}
    carried = evaluate_text(subject, None, None, carry=True)
    assert carried["documents"] == 1
    assert "as one stream" in carried["protocol"]
    curve = evaluate_contexts(subject, [16, 64])
    assert [row["context"] for row in curve["contexts"]] == [16, 64]
    assert curve["counts"]["tokens"] == 320


def test_bare_ids_have_no_tokenizer_to_read_a_text_with(run: Path, tmp_path: Path):
    (tmp_path / "text.txt").write_text("some text")
    with pytest.raises(DataError, match=r"final holds no tokenizer.json"):
        open_subject(run, None, "valid", [tmp_path / "text.txt"])


def test_several_processes_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch):
    made = Ranks.__init__

    def of_two(self: Ranks, *arguments) -> None:
        made(self, *arguments)
        self.world_size = 2

    monkeypatch.setattr(Ranks, "__init__", of_two)
    with pytest.raises(ConfigError, match="in one process"):
        open_subject(run, None, "valid", ())

"""MQAR as a task: targets at the queries alone, which a dictionary answers; every execution learns the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_run import journal_lines

from transnormer.config.load import load_config
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError
from transnormer.tasks.masking import IGNORED
from transnormer.tasks.mqar import MQAR
from transnormer.train import learner as learner_module
from transnormer.train.loop import evaluate_run, train

TINY = [
    *("recall.pairs=3", "recall.sequence_length=20", "recall.vocab_size=16"),
    *("recall.train_examples=40", "recall.valid_examples=10"),
    *("model.hidden_size=16", "train.steps=4", "optim.warmup_steps=1", "train.batch_size=6", "train.eval_every=2"),
    *("train.log_every=2", "train.eval_batch_size=4", "train.device=cpu"),
]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))


def config(*overrides: str) -> RunConfig:
    return load_config("recall/mqar", [*TINY, *overrides])


def by_dictionary(ids: list[int], pairs: int) -> dict[int, int]:
    """What a dictionary of the pairs says behind them, by position."""
    meaning = {ids[2 * i]: ids[2 * i + 1] for i in range(pairs)}
    return {place: meaning[ids[place]] for place in range(2 * pairs, len(ids)) if ids[place] in meaning}


class Oracle(torch.nn.Module):
    """Answers from a dictionary, as `score` asks a model."""

    def score_targets(self, input_ids, targets):
        hits = 0
        for ids, row in zip(input_ids.tolist(), targets.tolist(), strict=True):
            said = by_dictionary(ids, 3)
            hits += sum(said.get(place) == target for place, target in enumerate(row) if target != IGNORED)
        return torch.tensor(0.0), torch.tensor(hits)


def test_a_dictionary_gets_everything_right_and_is_asked_once_a_pair() -> None:
    task = MQAR(config())
    batch = task.train_batch(range(40))
    assert task.targets_in(batch) == 120 == int((batch["targets"] != IGNORED).sum())
    for ids, targets in zip(batch["input_ids"].tolist(), batch["targets"].tolist(), strict=True):
        asked = {place: target for place, target in enumerate(targets) if target != IGNORED}
        assert asked == by_dictionary(ids, 3)
    sums = sum(task.score(Oracle(), batch) for batch in task.eval_batches("valid", 4))
    assert task.metrics(dict(zip(task.sums, sums.tolist(), strict=True)))["accuracy"] == 1.0


def test_the_loss_is_that_of_the_queries() -> None:
    task = MQAR(config())
    torch.manual_seed(0)
    model = task.build_model().eval()
    assert model.config.causal
    assert model.config.vocab_size == 16
    batch = task.train_batch(range(5))
    with torch.no_grad():
        scores = model(input_ids=batch["input_ids"]).logits.log_softmax(-1)
        places = (batch["targets"] != IGNORED).nonzero()
        expected = -sum(float(scores[row, place, batch["targets"][row, place]]) for row, place in places)
        assert float(task.loss_sum(model, batch)) == pytest.approx(expected, rel=1e-5)
        loss, targets, _ = task.score(model, batch).tolist()
    assert (loss, targets) == (pytest.approx(expected, rel=1e-5), 15)


def test_batches_that_are_gathered_on_the_device_learn_the_same(tmp_path: Path, monkeypatch) -> None:
    plain = train(config(), tmp_path / "plain", show=False)
    monkeypatch.setattr(learner_module, "choose_execution", lambda *_: "cuda_graph")
    resident = train(config(), tmp_path / "resident", show=False)
    assert (plain["execution"], resident["execution"]) == ("eager", "cuda_graph")
    assert resident["tokens"] == plain["tokens"] == 4 * 6 * 20
    for line, same in zip(*(journal_lines(tmp_path / run, "train") for run in ("resident", "plain")), strict=True):
        assert line["loss"] == pytest.approx(same["loss"], rel=1e-5)
        assert line["grad_norm"] == pytest.approx(same["grad_norm"], rel=1e-4)
    assert resident["metrics"] == pytest.approx(plain["metrics"], rel=1e-4)
    assert plain["test"]["split"] == "test"
    monkeypatch.undo()
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    assert evaluate_run(tmp_path / "plain")["metrics"] == pytest.approx(plain["metrics"], rel=1e-5)


def test_keys_of_text_have_no_meaning_here() -> None:
    with pytest.raises(ConfigError, match=r"data\.sequence_length: has no meaning for recall/mqar"):
        config("data.sequence_length=64")
    with pytest.raises(ConfigError, match=r"recall\.pairs: is a key of the recall tasks"):
        load_config("demo", ["recall.pairs=4"])

"""The GLUE tasks: metrics against scikit-learn, scores counted by hand, padding, and what epochs make of a config."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from glue_files import TASKS, WORDS, write_task
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scoring import sums_of
from sklearn import metrics as sklearn
from torch import Tensor, nn

from transnormer.config.load import load_config, read_config
from transnormer.config.recipe import list_recipes
from transnormer.config.schema import RunConfig
from transnormer.data.glue.spec import SPECS
from transnormer.errors import ConfigError
from transnormer.models.classifier import ClassifierHead
from transnormer.models.presets import preset
from transnormer.step.schedules import learning_rate
from transnormer.tasks.glue import Glue
from transnormer.tasks.glue_metrics import metrics_of
from transnormer.tasks.registry import build_task, settled

Stores = Callable[[str], Path]
TINY = ["model.preset=t2-tiny", "model.hidden_size=16", "model.num_attention_heads=2", "model.num_hidden_layers=2"]
COUNTS = st.integers(0, 12) | st.just(0)


def config_of(task: str, store: Path, *changes: str) -> RunConfig:
    return load_config(f"glue/{task}", [*TINY, f"data.store={store}", "train.device=cpu", *changes])


class ByLength(nn.Module):
    """Classifies by the number of real tokens alone, so that its score can be counted by hand."""

    def __init__(self, num_labels: int) -> None:
        super().__init__()
        self.num_labels = num_labels

    def label(self, length: int) -> int:
        return length * 5 % 7 % self.num_labels

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        labels = torch.tensor([self.label(int(length)) for length in attention_mask.sum(dim=1)])
        return SimpleNamespace(logits=nn.functional.one_hot(labels, self.num_labels).float())


@given(arrays.arrays(np.int64, (2, 2), elements=COUNTS))
def test_metrics_are_those_of_scikit_learn(confusion: np.ndarray):
    assume(confusion.sum())
    labels, predicted = (np.repeat(each.ravel(), confusion.ravel()) for each in np.indices((2, 2)))
    found = metrics_of(confusion, ["accuracy", "f1", "matthews"])
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(labels, predicted))
    assert found["f1"] == pytest.approx(sklearn.f1_score(labels, predicted, zero_division=0), abs=1e-6)
    with np.errstate(all="ignore"):
        assert found["matthews"] == pytest.approx(sklearn.matthews_corrcoef(labels, predicted), abs=1e-6)


@pytest.mark.parametrize("task", TASKS)
def test_scores_counted_by_hand(glue_store: Stores, task: str):
    glue = build_task(config_of(task, glue_store(task)))
    spec, model = SPECS[f"glue/{task}"], ByLength(len(SPECS[f"glue/{task}"].labels))
    sums = sums_of(glue, model, "valid")
    for other in glue.beside("valid"):
        sums |= {f"{other}.{name}": value for name, value in sums_of(glue, model, other).items()}
    found = glue.metrics(sums)
    assert glue.primary_metric == spec.metrics[0]
    expected = {"accuracy": sklearn.accuracy_score, "f1": sklearn.f1_score, "matthews": sklearn.matthews_corrcoef}
    for split, ending in (("valid", ""), ("valid_mismatched", "_mismatched")):
        if split not in glue.store.splits:
            continue
        examples = glue.store.split(split)
        predicted = [model.label(int(length)) for length in examples.lengths[:, 0]]
        classes = range(len(spec.labels))
        confusion = sklearn.confusion_matrix(examples.labels, predicted, labels=list(classes))
        prefix = "" if split == "valid" else f"{split}."
        assert [[sums[f"{prefix}{a}>{b}"] for b in classes] for a in classes] == confusion.tolist()
        for name in spec.metrics:
            assert found.pop(f"{name}{ending}") == pytest.approx(expected[name](examples.labels, predicted), abs=1e-6)
    assert list(found) == ["loss"]


def test_the_ranks_together_score_every_example_once(glue_store: Stores):
    glue = build_task(config_of("mnli", glue_store("mnli")))
    model = glue.build_model()
    whole, parts = sums_of(glue, model, "valid"), [sums_of(glue, model, "valid", rank, 3) for rank in range(3)]
    assert {name: sum(part[name] for part in parts) for name in whole} == pytest.approx(whole, rel=1e-4)
    assert sum(value for name, value in whole.items() if ">" in name) == whole["examples"] == WORDS["valid"]


@pytest.mark.parametrize("method", ["t1", "t2", "vanilla", "linear_elu", "performer", "flash_quad"])
def test_padding_changes_nothing(glue_store: Stores, method: str):
    glue = build_task(config_of("rte", glue_store("rte"), f"model.preset={method}-tiny"))
    torch.manual_seed(0)
    model, examples = glue.build_model().eval(), glue.examples("valid")
    feeds = glue.feeds(torch.device("cpu"))
    resident = feeds.batch({"rows": torch.arange(3)}, "valid")
    assert resident["input_ids"].shape[1] == glue.width("valid")
    assert examples.lengths.max() <= glue.width("valid") < examples.lengths.max() + 8
    with torch.no_grad():
        tight, wide = (glue.logits(model, batch) for batch in (glue.batch(examples, [0, 1, 2]), resident))
    torch.testing.assert_close(wide, tight, rtol=1e-4, atol=1e-5)
    for feed in feeds.eval_feeds("valid", 5, 0, 1):  # the last one is filled up with examples of weight zero
        assert feeds.score(model, feed, "valid")[1] == feed["weights"].sum()


def test_the_model_is_robertas(glue_store: Stores):
    glue = build_task(load_config("glue/cola", [f"data.store={glue_store('cola')}", "model.num_hidden_layers=2"]))
    config = glue.model_config()
    assert (config.pooling, config.classifier_act, config.num_labels, config.dropout) == ("first", "tanh", 2, 0.1)
    assert config.vocab_size == glue.store.vocab_size
    assert config.max_position_embeddings == 514
    assert not config.causal
    head = ClassifierHead(8, preset("t2-mlm", hidden_size=8, num_attention_heads=2, dropout=0.5)).train()
    head.dense.weight.data.copy_(torch.eye(8))
    seen = head.dense.register_forward_hook(lambda _, inputs, output: setattr(head, "seen", inputs[0]))
    head(torch.ones(4, 8))
    seen.remove()
    assert set(head.seen.flatten().tolist()) == {0.0, 2.0}  # what is classified is dropped out, too


def test_a_test_set_cannot_be_scored(glue_store: Stores):
    glue = build_task(config_of("sst2", glue_store("sst2")))
    with pytest.raises(ConfigError, match=r"labels of glue/sst2's test split are not published .*transnormer predict"):
        sums_of(glue, glue.build_model(), "test")


def test_a_store_of_another_task_is_refused(glue_store: Stores):
    with pytest.raises(ConfigError, match=r"was prepared for glue/sst2, .* data prepare glue/cola --source"):
        Glue(config_of("cola", glue_store("sst2")))


@given(epochs=st.floats(0.1, 7), batch=st.integers(1, 64), ratio=st.floats(0, 0.9))
def test_epochs_become_steps(glue_store: Stores, epochs: float, batch: int, ratio: float):
    settings = (f"glue.epochs={epochs}", f"train.batch_size={batch}", f"glue.warmup_ratio={ratio}")
    config = settled(config_of("sst2", glue_store("sst2"), *settings))
    train, examples = config.train, WORDS["train"]
    assert (train.steps - 1) * batch < epochs * examples <= train.steps * batch
    assert train.eval_every == train.save_every == math.ceil(examples / batch)
    assert config.optim.warmup_steps == int(ratio * train.steps) < train.steps
    assert settled(config) == config
    assert learning_rate(config.optim, train.steps, config.optim.warmup_steps) == config.optim.lr


def test_what_epochs_decide_is_not_decided_twice(glue_store: Stores, tmp_path: Path):
    store = glue_store("sst2")
    with pytest.raises(ConfigError, match=r"train.steps=7: glue.epochs=3 decides it, and makes 4 of it"):
        settled(config_of("sst2", store, "train.steps=7"))
    with pytest.raises(ConfigError, match=r"optim.warmup_steps=2: .*glue.epochs=null"):
        settled(config_of("sst2", store, "optim.warmup_steps=2"))
    config = settled(config_of("sst2", store, "train.steps=7", "glue.epochs=null", "train.eval_every=3"))
    assert (config.train.steps, config.train.eval_every) == (7, 3)
    assert settled(config_of("sst2", store, "train.eval_every=3")).train.eval_every == 3


def test_a_source_is_counted_and_prepared_on_first_use(glue_bpe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    source = write_task(tmp_path / "CoLA", "cola")
    settings = [f"data.source={source}", f"data.tokenizer=roberta:{glue_bpe}", "glue.max_length=16"]
    config = settled(load_config("glue/cola", [*TINY, *settings, "train.device=cpu"]))
    assert config.train.steps == math.ceil(3 * WORDS["train"] / 16)
    assert not (tmp_path / "cache").exists(), "counting prepares nothing"
    assert build_task(config).store.max_length == 16
    with pytest.raises(ConfigError, match=r"glue/cola needs a tokenizer"):
        settled(load_config("glue/cola", [f"data.source={source}"]))


def test_every_task_has_a_recipe(glue_store: Stores):
    assert [name for name in list_recipes() if name.startswith("glue/")] == sorted(SPECS)
    for name in SPECS:
        config = load_config(name)
        assert config.task == name
        assert (config.optim.betas, config.optim.eps, config.optim.weight_decay) == ((0.9, 0.98), 1e-6, 0.1)
        assert (config.model.dropout, config.model.classifier_dropout) == (0.1, 0.0)
        assert config.train.batch_size == (16 if name in ("glue/mrpc", "glue/cola", "glue/rte") else 32)
    with pytest.raises(ConfigError, match=r"glue.max_length has no effect beside data.store"):
        config_of("rte", glue_store("rte"), "glue.max_length=64")
    with pytest.raises(ConfigError, match=r"data.eval_windows: has no meaning for glue/rte.*leave it out"):
        config_of("rte", glue_store("rte"), "data.eval_windows=64")


def test_keys_survive_a_run_folder(glue_store: Stores, tmp_path: Path):
    from transnormer.config.load import dump_config

    config = settled(config_of("rte", glue_store("rte")))
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert read_config(tmp_path / "config.yaml") == config

"""Tasks by name, and what every one of them must offer."""

import pytest
import torch
from lra_files import lra_config
from scoring import sums_of

from transnormer.config.load import load_config
from transnormer.errors import ConfigError
from transnormer.tasks.contract import Task
from transnormer.tasks.registry import TASKS, build_task

LRA = [f"lra/{name}" for name in ("image", "listops", "pathfinder", "retrieval", "text")]


GLUE = [f"glue/{name}" for name in ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2")]


def test_the_names():
    assert sorted(TASKS) == ["causal_lm", *GLUE, *LRA, "masked_lm", "recall/mqar"]


def test_an_unknown_task_suggests_the_nearest(configure):
    with pytest.raises(ConfigError, match=r"unknown task 'casual_lm'.*did you mean 'causal_lm'"):
        build_task(configure(task="casual_lm"))


@pytest.fixture(params=sorted(TASKS))
def task(request: pytest.FixtureRequest) -> Task:
    if request.param in LRA:
        store = request.getfixturevalue("lra_store")(request.param)
        return build_task(lra_config(request.param, store, lra__valid_examples=2))
    if request.param in GLUE:
        store = request.getfixturevalue("glue_store")(request.param.partition("/")[2])
        return build_task(load_config(request.param, [f"data.store={store}", "model.preset=t2-tiny"]))
    if request.param == "recall/mqar":
        request.getfixturevalue("monkeypatch").setenv("TRANSNORMER_CACHE", str(request.getfixturevalue("tmp_path")))
        small = ("recall.train_examples=8", "recall.valid_examples=2", "recall.sequence_length=16")
        return build_task(load_config(request.param, small))
    return build_task(request.getfixturevalue("configure")(task=request.param, eval_windows=2))


def test_every_task_keeps_the_contract(task: Task, request: pytest.FixtureRequest):
    assert task.name == request.node.callspec.params["task"]
    assert TASKS[task.name].about
    assert ("window" in task.protocol) == (task.name in ("causal_lm", "masked_lm"))
    assert "\n" not in task.protocol
    assert task.num_train_samples > 0
    torch.manual_seed(0)
    model = task.build_model()
    batch = task.train_batch([0, 1, 2])
    assert all(tensor.device.type == "cpu" and len(tensor) == 3 for tensor in batch.values())
    loss = task.loss_sum(model, batch)
    assert loss.shape == ()
    assert loss.dtype == torch.float32
    sums = sums_of(task, model, "valid")
    assert all(isinstance(value, float) for value in sums.values())
    metrics = task.metrics(sums)
    assert task.primary_metric in metrics
    assert task.metrics({name: 2 * value for name, value in sums.items()}) == pytest.approx(metrics)

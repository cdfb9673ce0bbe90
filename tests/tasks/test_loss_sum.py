"""How the language-model tasks get their loss: from logits where these are few, without them where they are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from scoring import sums_of

from transnormer.tasks import token_windows
from transnormer.tasks.registry import build_task

TASKS = ["causal_lm", "masked_lm"]


@pytest.fixture(params=TASKS)
def setup(request: pytest.FixtureRequest, configure):
    task = build_task(configure(task=request.param, model={"preset": "t2-tiny", "hidden_size": 32, "dropout": 0.0}))
    torch.manual_seed(0)
    return task, task.build_model()


def calls_of(model: torch.nn.Module) -> list[set[str]]:
    calls: list[set[str]] = []
    model.register_forward_pre_hook(lambda _, __, keywords: calls.append(set(keywords)), with_kwargs=True)
    return calls


def few_of(task) -> set[str]:
    """What tells a model that only few of its positions have a target."""
    return {"most_targets"} if task.name == "masked_lm" else set()


def test_many_logits_are_never_made_and_the_loss_is_the_same(setup, monkeypatch: pytest.MonkeyPatch):
    task, model = setup
    calls, batch, found = calls_of(model), task.train_batch(range(4)), []
    for most in (token_windows._MOST_LOGITS, 4 * 32 * 259, 4 * 32 * 259 - 1):
        monkeypatch.setattr(token_windows, "_MOST_LOGITS", most)
        model.zero_grad()
        loss = task.loss_sum(model, batch)
        (loss / 100).backward()
        found.append([loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())])
    assert calls == [{"input_ids"}, {"input_ids"}, {"input_ids", "targets"} | few_of(task)]
    for a, b in zip(found[0], found[2], strict=True):
        assert a.dtype == b.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_evaluation_makes_no_logits_and_scores_as_they_would(setup, monkeypatch: pytest.MonkeyPatch):
    task, model = setup
    expected = torch.zeros(3, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for batch in task.eval_batches("valid", 8):
            logits, targets = model(input_ids=batch["input_ids"]).logits.flatten(0, 1), batch["targets"].flatten()
            scored = targets != -100
            loss = F.cross_entropy(logits.double(), targets, reduction="sum")
            expected += torch.stack([loss, scored.sum(), (logits.argmax(dim=-1) == targets).sum()])
    widths, forward = set(), torch.nn.Linear.forward
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: widths.add(self.out_features) or forward(self, x))
    sums = sums_of(task, model, "valid")
    assert [sums[name] for name in task.sums] == pytest.approx(expected.tolist(), rel=1e-5)
    assert widths
    assert 259 not in widths


@pytest.mark.gpu
def test_a_gpu_always_goes_without_logits(setup):
    task, model = setup
    calls = calls_of(model.cuda())
    batch = {name: tensor.cuda() for name, tensor in task.train_batch(range(4)).items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = task.loss_sum(model, batch)
    loss.backward()
    assert calls == [{"input_ids", "targets"} | few_of(task)]
    assert loss.dtype == torch.float32

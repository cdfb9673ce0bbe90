"""Every schedule equals the scheduler class of torch or transformers that is its definition, at every step."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.optim.lr_scheduler import OneCycleLR

from transnormer.config.schema import OptimSection
from transnormer.step.schedules import beta1, learning_rate

LR, STEPS = 3e-3, 60


def follow(make_scheduler, steps: int = STEPS) -> list[tuple[float, float]]:
    """(learning rate, beta1) of each update as a torch scheduler sets them."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR, betas=(0.9, 0.98))
    scheduler = make_scheduler(optimizer)
    seen = []
    for _ in range(steps):
        group = optimizer.param_groups[0]
        seen.append((group["lr"], group["betas"][0]))
        optimizer.step()
        scheduler.step()
    return seen


def ours(steps: int = STEPS, **changes) -> list[tuple[float, float]]:
    optim = OptimSection(lr=LR, betas=(0.9, 0.98), **changes)
    return [(learning_rate(optim, steps, step), beta1(optim, steps, step)) for step in range(steps)]


@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize(
    ("changes", "oracle"),
    [
        ({"schedule": "constant"}, lambda o, w: transformers.get_constant_schedule_with_warmup(o, w)),
        ({"schedule": "inverse_sqrt"}, lambda o, w: transformers.get_inverse_sqrt_schedule(o, w)),
        ({"schedule": "cosine"}, lambda o, w: transformers.get_cosine_schedule_with_warmup(o, w, STEPS)),
        (
            {"schedule": "cosine", "final_lr_ratio": 0.1},
            lambda o, w: transformers.get_cosine_with_min_lr_schedule_with_warmup(o, w, STEPS, min_lr_rate=0.1),
        ),
        (
            {"schedule": "polynomial", "final_lr_ratio": 0.2, "power": 2.0},
            lambda o, w: transformers.get_polynomial_decay_schedule_with_warmup(
                o, w, STEPS, lr_end=0.2 * LR, power=2.0
            ),
        ),
        ({"schedule": "polynomial"}, lambda o, w: transformers.get_linear_schedule_with_warmup(o, w, STEPS)),
    ],
    ids=["constant", "inverse_sqrt", "cosine", "cosine_min", "polynomial", "linear"],
)
def test_equals_transformers_schedule(changes, oracle, warmup: int) -> None:
    expected = follow(lambda optimizer: oracle(optimizer, warmup))
    for got, want in zip(ours(warmup_steps=warmup, **changes), expected, strict=True):
        assert got == pytest.approx(want, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("cycle_momentum", [True, False])
@pytest.mark.parametrize("warmup", [0, 2, 15, 58])
def test_one_cycle_equals_torch(warmup: int, cycle_momentum: bool) -> None:
    expected = follow(
        lambda optimizer: OneCycleLR(
            optimizer,
            LR,
            total_steps=STEPS,
            pct_start=warmup / STEPS,
            anneal_strategy="linear",
            cycle_momentum=cycle_momentum,
        )
    )
    got = ours(schedule="one_cycle", warmup_steps=warmup, cycle_momentum=cycle_momentum)
    for ours_at, torch_at in zip(got, expected, strict=True):
        assert ours_at == pytest.approx(torch_at, rel=1e-9)


def test_one_cycle_ends() -> None:
    rates = ours(schedule="one_cycle", warmup_steps=15)
    assert rates[0] == pytest.approx((LR / 25, 0.95))
    assert rates[14] == pytest.approx((LR, 0.85))
    assert rates[-1] == pytest.approx((LR / 2.5e5, 0.95))


def test_one_cycle_with_a_single_rising_step_starts_at_its_peak() -> None:
    assert ours(schedule="one_cycle", warmup_steps=1)[0] == pytest.approx((LR, 0.85))

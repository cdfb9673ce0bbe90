"""Mixers that decode on a state of fixed shape: their step is the parallel form, in place and without the host."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transnormer.errors import ConfigError
from transnormer.mixers.components.state import FixedState
from transnormer.mixers.contract import Mixer
from transnormer.mixers.registry import build_mixer

VARIANTS = [
    ("norm", {}),
    ("norm", {"position": "rope"}),
    ("norm", {"position": "lrpe", "feature_map": "elu", "xnorm": "head_rms"}),
    ("diag", {}),
    ("diag", {"position": "lrpe", "block_size": 16}),
    ("diag", {"position": "rope", "kind": "rela"}),
    ("softmax", {}),
    ("softmax", {"position": "rope"}),
    ("linear_elu", {}),
]
EACH = pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=["-".join([name, *map(str, options.values())]) for name, options in VARIANTS]
)


def build(name: str, options: dict) -> Mixer:
    torch.manual_seed(0)
    return build_mixer(name, hidden_size=32, num_heads=4, causal=True, max_length=256, **options).double().eval()


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def first_slots(mixer: Mixer, state: FixedState, count: int) -> FixedState:
    """What an owner gives a mixer whose state grows: the slots in use."""
    if mixer.traits.recurrent:
        return state
    return FixedState(length=state["length"], keys=state["keys"][:, :count], values=state["values"][:, :count])


@EACH
@pytest.mark.parametrize("read_at_once", [0, 1, 15, 63, 64, 65, 150])
@torch.no_grad()
def test_steps_after_a_parallel_start_equal_the_parallel_whole(name, options, read_at_once):
    mixer, x = build(name, options), tokens(2, 200)
    length = torch.full((2,), read_at_once)
    fixed = mixer.fixed_state(length, 200, torch.float64)
    addresses = {key: value.data_ptr() for key, value in fixed.items()}
    if read_at_once:
        _, state = mixer(x[:, :read_at_once], None, mixer.init_state(2))
        fixed.load(state)
    steps = []
    for t in range(read_at_once, 200):
        steps.append(mixer.step(x[:, t : t + 1], first_slots(mixer, fixed, t + 1)))
        length += 1
    torch.testing.assert_close(torch.cat(steps, dim=1), mixer(x)[:, read_at_once:], atol=1e-10, rtol=0)
    assert {key: value.data_ptr() for key, value in fixed.items()} == addresses


@EACH
@torch.no_grad()
def test_rows_of_different_length_do_not_disturb_each_other(name, options):
    mixer, x = build(name, options), tokens(3, 150)
    if not mixer.traits.recurrent:
        pytest.skip("a state that grows holds rows of one length")
    counts = torch.tensor([140, 64, 1])
    mask = torch.arange(140) < counts[:, None]
    _, state = mixer(x[:, :140], mask, mixer.init_state(3))
    length = counts.clone()
    fixed = mixer.fixed_state(length, 1, torch.float64)
    fixed.load(state)
    for t in range(10):
        new = torch.stack([x[row, count + t] for row, count in enumerate(counts)])[:, None]
        y = mixer.step(new, fixed)
        length += 1
        for row, count in enumerate(counts):
            alone = mixer(x[row : row + 1, : count + t + 1])[:, -1:]
            torch.testing.assert_close(y[row : row + 1], alone, atol=1e-10, rtol=0)


class OnlyOn(TorchDispatchMode):
    """Refuses every operation that makes or reads a tensor on another device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, out)):
            assert not isinstance(value, torch.Tensor) or value.device.type == self.device, f"{func} on {value.device}"
        return out


@EACH
@torch.no_grad()
def test_a_step_never_asks_the_host(name, options):
    """A tensor without data stands in for one on a GPU: whoever reads a value of it, or copies from the CPU, fails."""
    mixer = build(name, options).to("meta")
    state = mixer.fixed_state(torch.zeros(2, dtype=torch.long, device="meta"), 10, torch.float64)
    x = torch.zeros(2, 1, 32, dtype=torch.float64, device="meta")
    with OnlyOn("meta"):
        assert mixer.step(x, state).shape == (2, 1, 32)


def test_half_precision_keeps_its_memory_in_float32():
    length = torch.zeros(1, dtype=torch.long)
    assert build("norm", {}).fixed_state(length, 1, torch.bfloat16)["memory"].dtype == torch.float32
    assert build("diag", {}).fixed_state(length, 1, torch.bfloat16)["keys"].dtype == torch.bfloat16


def test_a_mixer_without_such_a_step_says_so():
    mixer = build("performer", {})
    with pytest.raises(ConfigError, match="performer cannot decode on a state of fixed shape"):
        mixer.fixed_state(torch.zeros(1, dtype=torch.long), 1, torch.float32)
    with pytest.raises(ConfigError, match="performer cannot decode on a state of fixed shape"):
        mixer(tokens(1, 1), None, FixedState(length=torch.zeros(1, dtype=torch.long)))

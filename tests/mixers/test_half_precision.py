"""float16 ends at 65,504: linear attention sums far above it, and no mixer may let that reach its output."""

from __future__ import annotations

import pytest
import torch

import transnormer as tn
from transnormer.ops import norm_attention

SUMS = [
    ("norm", {"position": "lrpe"}),
    ("norm", {"feature_map": "elu", "position": "lrpe"}),
    ("norm", {"xnorm": "layer"}),
    ("norm", {"xnorm": "rms_gain"}),
    ("norm", {"xnorm": "head_rms"}),
    ("diag", {"kind": "rela", "position": "lrpe"}),
    ("linear_elu", {}),
    ("performer", {}),
    ("cosformer", {}),
]
CASES = pytest.mark.parametrize(("name", "options"), SUMS, ids=lambda x: x if isinstance(x, str) else "-".join(x))
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
LENGTH, HIDDEN = 32_768, 32


def mixer_with_means_of_two(name: str, options: dict, causal: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    mixer = tn.build_mixer(name, hidden_size=HIDDEN, num_heads=1, causal=causal, max_length=LENGTH, **options)
    for projection in (mixer.q_proj, mixer.k_proj, mixer.v_proj):
        torch.nn.init.constant_(projection.bias, 2.0)
    return mixer.eval()


def tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(1, length, HIDDEN, generator=torch.Generator().manual_seed(1))


@CASES
@DEVICES
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("autocast", [False, True])
def test_float16_is_finite_and_near_float32(name, options, causal, autocast, device):
    mixer, x = mixer_with_means_of_two(name, options, causal).to(device), tokens().to(device)
    with torch.no_grad():
        expected = mixer(x)
        if autocast:
            with torch.autocast(device, dtype=torch.float16):
                found = mixer(x)
        else:
            found = mixer.half()(x.half())
    assert found.dtype == torch.float16
    assert found.isfinite().all()
    assert (found - expected).norm() / expected.norm() < 5e-3


@CASES
def test_gradients_and_steps_of_float16_are_finite_and_near_float32(name, options):
    length = 4096
    mixer, x = mixer_with_means_of_two(name, options, causal=True), tokens(length)

    def results(mixer: torch.nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        y = mixer(x)
        [gradient] = torch.autograd.grad((y.float() * x.flip(1)).sum() / 64, [mixer.v_proj.weight])
        with torch.no_grad():
            _, state = mixer(x[:, :-1], state=mixer.init_state(1))
            last, _ = mixer(x[:, -1:], state=state)
        return [gradient, last]

    expected, found = results(mixer, x), results(mixer.half(), x.half())
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float16
        assert (ours - theirs).norm() / theirs.norm() < 2e-2


@pytest.mark.parametrize("name", ["norm", "linear_elu"])
def test_a_fixed_state_decodes_in_float16(name):
    mixer = mixer_with_means_of_two(name, {}, causal=True).half()
    state = mixer.fixed_state(torch.tensor([3]), 8, torch.float16)
    with torch.no_grad():
        state["memory"].fill_(1e6)
        y, _ = mixer(tokens(1).half(), state=state)
    assert y.dtype == torch.float16
    assert y.isfinite().all()


@DEVICES
@pytest.mark.parametrize("preset", ["t1-tiny", "t2-tiny"])
def test_models_in_float16_are_finite_at_16k(preset, device):
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset(preset, vocab_size=50)).to(device, torch.float16).eval()
    ids = torch.randint(50, (1, 16_384), generator=torch.Generator().manual_seed(0)).to(device)
    with torch.no_grad():
        assert model(ids, logits_to_keep=8).logits.isfinite().all()


@pytest.mark.parametrize("causal", [True, False])
def test_the_op_returns_float16_as_float32(causal):
    q = torch.full((1, 2048, 1, 64), 2.0, dtype=torch.float16)
    out, state = norm_attention(q, q, q, causal=causal, return_state=True)
    assert out.dtype == state.dtype == torch.float32
    assert out[0, -1, 0, 0].item() == 2048 * 64 * 3 * 3 * 2

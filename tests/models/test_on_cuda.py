"""The whole model on a GPU: autocast, kernels and compiler together give what the CPU gives in float32."""

from __future__ import annotations

import pytest
import torch

import transnormer as tn

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("method", ["t1", "t2"])
def test_a_training_step_under_autocast_is_near_the_cpus(method, compiled):
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset(f"{method}-tiny", num_hidden_layers=2))
    ids = torch.randint(0, 256, (2, 200))
    expected = model(ids, labels=ids).loss
    expected.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.cuda()
    run = torch.compile(model, fullgraph=True) if compiled else model
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = run(ids.cuda(), labels=ids.cuda()).loss
    loss.backward()
    torch.testing.assert_close(loss.cpu(), expected, rtol=2e-2, atol=0)
    for name, parameter in model.named_parameters():
        error = (parameter.grad.cpu() - gradients[name]).norm() / gradients[name].norm().clamp(min=1e-4)
        assert error < 0.1, f"{name}: {error:.2e}"


def test_greedy_generation_equals_the_parallel_forward():
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset("t2-tiny", num_hidden_layers=2)).cuda().eval()
    ids = torch.randint(0, 256, (2, 70), device="cuda")
    out = model.generate(ids, max_new_tokens=70, do_sample=False, pad_token_id=256)
    with torch.no_grad():
        parallel = model(out).logits.argmax(-1)
    agreement = (parallel[:, 69:-1] == out[:, 70:]).float().mean()
    assert agreement > 0.97  # float32 sums in another order may flip a tie


@pytest.mark.parametrize("method", ["t1", "t2"])
def test_packed_sequences_have_the_loss_and_gradients_of_rows_apart(method):
    """As near float32 as they are: both round to bfloat16, in chunks and blocks that begin elsewhere."""
    lengths = [300, 1, 64, 135, 12]
    torch.manual_seed(0)
    model = tn.TransNormerForCausalLM(tn.preset(f"{method}-tiny", num_hidden_layers=2)).cuda()
    ids = torch.randint(0, 256, (1, sum(lengths)), device="cuda")
    weights = torch.randn(sum(lengths), 1, device="cuda")
    bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0)

    def gradients(forward, half: bool = True) -> dict[str, torch.Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            logits = forward()
        grads = torch.autograd.grad((logits[0].float() * weights).mean(), list(model.parameters()))
        return {"logits": logits.float()} | {
            name: grad for (name, _), grad in zip(model.named_parameters(), grads, strict=True)
        }

    def apart() -> torch.Tensor:
        return torch.cat([model(row).logits for row in ids.split(lengths, dim=1)], dim=1)

    packed = gradients(lambda: model(ids, cu_seqlens=bounds).logits)
    exact, rounded = gradients(apart, half=False), gradients(apart)
    for name, expected in exact.items():
        size = expected.norm().clamp(min=1e-6)
        error, allowed = (packed[name] - expected).norm() / size, (rounded[name] - expected).norm() / size
        assert error < max(2 * allowed, 1e-3), f"{name}: {error:.2e}, apart {allowed:.2e}"

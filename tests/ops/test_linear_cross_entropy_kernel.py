"""The Triton row kernel of linear_cross_entropy; interpreted where there is no GPU (in a process of its own)."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch
from kernel_cases import FLOOR, outputs_and_gradients, relative

from transnormer.errors import ConfigError
from transnormer.ops import linear_cross_entropy, linear_cross_entropy_and_hits
from transnormer.ops.backend import explain
from transnormer.ops.linear_cross_entropy.reference import linear_cross_entropy_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it.
HALF = torch.float16 if INTERPRETED else torch.bfloat16

pytest.importorskip("triton", reason="triton is not installed")
here = pytest.mark.gpu if not INTERPRETED else pytest.mark.usefixtures("poisoned_empty")

CASES = [  # tokens, width, vocabulary, chunk, bias
    (1, 8, 2, None, False),
    (7, 24, 5, 3, True),
    (10, 24, 257, 4, True),
    (9, 16, 300, None, False),
    (3, 8, 9000, 2, True),  # two blocks of float16, three of float32
]
CASES_GPU = [
    (tokens, 512, vocabulary, chunk, bias)
    for vocabulary in (256, 257, 50_257, 50_304, 267_744)
    for tokens, chunk, bias in ((1, None, False), (700, 256, True), (512, None, False))
]


def problem(tokens: int, width: int, vocabulary: int, dtype: torch.dtype, *, bias: bool):
    """[x, weight, bias] and targets of which every third is ignored; logits have a standard deviation of about 2."""
    generator = torch.Generator().manual_seed(tokens + vocabulary)
    shapes = [(tokens, width), (vocabulary, width), (vocabulary,)][: 3 if bias else 2]
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    inputs[0] *= 2 * width**-0.5
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    targets[1::3] = -100
    return [x.to(DEVICE, dtype) for x in inputs], targets.to(DEVICE)


def on(function, targets, **options):
    return lambda x, weight, bias=None: function(x, weight, bias, targets, **options)


@here
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("case", CASES if INTERPRETED else CASES_GPU, ids=str)
def test_is_as_exact_as_pytorch_in_that_dtype(case, dtype):
    tokens, width, vocabulary, chunk, bias = case
    inputs, targets = problem(tokens, width, vocabulary, dtype, bias=bias)
    run = partial(outputs_and_gradients, seed=1)
    exact = run(on(linear_cross_entropy_reference, targets), [x.double() for x in inputs])
    plain = run(on(linear_cross_entropy_reference, targets), inputs)
    ours = run(on(linear_cross_entropy, targets, chunk_size=chunk, backend="triton"), inputs)
    # One rounded number may be right by chance: the loss need not be better than its logits' dtype.
    floors = [max(FLOOR, torch.finfo(dtype).eps / 8), *[FLOOR] * len(inputs)]
    for index, (a, b, c, floor) in enumerate(zip(ours, plain, exact, floors, strict=True)):
        assert a.isfinite().all(), f"result {index} is not finite"
        found, allowed = relative(a.double() - c, c), max(2 * relative(b.double() - c, c), floor)
        assert found <= allowed, f"result {index}: kernel {found:.2e}, PyTorch allows {allowed:.2e}"


@here
def test_strides_do_not_matter():
    (x, weight), targets = problem(10, 24, 257, torch.float32, bias=False)
    expected = linear_cross_entropy(x, weight, None, targets, chunk_size=4, backend="triton")
    strided = targets.repeat_interleave(2)[::2]
    turned = [tensor.T.contiguous().T for tensor in (x, weight)]
    ours = linear_cross_entropy(*turned, None, strided, chunk_size=4, backend="triton")
    torch.testing.assert_close(ours, expected)


@here
def test_without_gradients_there_is_only_the_loss():
    inputs, targets = problem(9, 16, 300, torch.float32, bias=True)
    with torch.no_grad():
        ours = linear_cross_entropy(*inputs, targets, backend="triton")
        torch.testing.assert_close(ours, linear_cross_entropy_reference(*inputs, targets))


@here
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_extreme_logits(dtype):
    """Large exponents; -inf for what is impossible, also in lanes that see nothing else; NaN in a row to be ignored."""
    from transnormer.ops.linear_cross_entropy.kernel import score_rows

    buffer = torch.full((4, 320), 5e4, device=DEVICE, dtype=dtype)  # padding must not count, whatever it holds
    logits = buffer[:, :300]
    logits[0] = torch.linspace(-6e4, 6e4, 300)
    logits[1], logits[1, 299] = -torch.inf, 3.0
    logits[2] = torch.nan
    logits[3] = 0
    exact = logits.double().requires_grad_()
    targets = torch.tensor([298, 299, -100, 7], device=DEVICE)
    losses = torch.nn.functional.cross_entropy(exact, targets, reduction="none")
    (gradient,) = torch.autograd.grad(losses.sum(), exact)
    found, hits = torch.empty(4, device=DEVICE), torch.empty(4, dtype=torch.int32, device=DEVICE)
    score_rows(buffer, None, targets, found, hits, -100, 300, False)
    torch.testing.assert_close(found.double(), losses.detach(), rtol=1e-3, atol=1e-5)
    assert hits.tolist() == [0, 1, 0, 0]  # of equal logits the first is the argmax
    score_rows(buffer, None, targets, found, hits[:0], -100, 300, True)
    torch.testing.assert_close(found.double(), losses.detach(), rtol=1e-3, atol=1e-5)
    assert logits[2].eq(0).all()
    assert buffer[:, 300:].eq(0).all()
    kept = [0, 1, 3]
    torch.testing.assert_close(logits.double()[kept], gradient[kept], rtol=1e-2, atol=1e-6)


@here
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_hits_are_those_of_argmax(dtype):
    (x, weight, bias), _ = problem(60, 16, 300, dtype, bias=True)
    x, weight, bias = x.round(), weight.round(), bias.round()  # exact in half precision, with many equal logits
    best = torch.nn.functional.linear(x.double(), weight.double(), bias.double()).argmax(dim=1)
    targets = torch.where(torch.arange(60, device=DEVICE) % 2 == 0, best, (best + 1) % 300)
    targets[::6] = -100
    loss, hits = linear_cross_entropy_and_hits(x, weight, bias, targets, chunk_size=16, backend="triton")
    assert hits == 20
    expected = linear_cross_entropy_reference(x.double(), weight.double(), bias.double(), targets)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-3, atol=0)


@here
def test_a_target_that_is_no_class_is_not_a_number():
    inputs, targets = problem(9, 16, 320, torch.float32, bias=True)  # rows without padding: beside one lies another
    for wrong in (320, 10**6, -1):
        targets[3] = wrong
        assert linear_cross_entropy(*inputs, targets, backend="triton").isnan()


@here
def test_the_same_inputs_give_the_same_bits():
    inputs, targets = problem(50, 16, 300, HALF, bias=True)
    runs = [
        outputs_and_gradients(on(linear_cross_entropy, targets, chunk_size=16, backend="triton"), inputs, seed=1)
        for _ in range(2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@here
def test_float64_is_refused_with_the_reason():
    inputs, targets = problem(9, 16, 300, torch.float64, bias=False)
    with pytest.raises(ConfigError, match="float64"):
        linear_cross_entropy(*inputs, None, targets, backend="triton")
    assert explain("linear_cross_entropy", DEVICE, "triton").backend == "triton"


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_under_autocast_takes_the_kernel_and_the_float32_sum(compiled):
    inputs, targets = problem(20_000, 64, 5000, torch.float32, bias=True)
    assert explain("linear_cross_entropy", "cuda", x=inputs[0], weight=inputs[1]).backend == "triton"

    def loss(x, weight, bias):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return linear_cross_entropy(x, weight, bias, targets, reduction="mean", chunk_size=4096)

    exact = outputs_and_gradients(
        on(linear_cross_entropy_reference, targets, reduction="mean"), [x.double() for x in inputs], seed=1
    )
    run = torch.compile(loss, fullgraph=True) if compiled else loss
    for a, b in zip(outputs_and_gradients(run, inputs, seed=1), exact, strict=True):
        assert a.dtype == torch.float32
        assert relative(a.double() - b, b) < 2e-2


@pytest.mark.gpu
def test_a_gpu_never_holds_the_logits():
    inputs, targets = problem(32_768, 64, 50_304, torch.bfloat16, bias=False)
    inputs = [x.requires_grad_() for x in inputs]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_cross_entropy(*inputs, None, targets).backward()
    logits = 32_768 * 50_304 * 2
    assert torch.cuda.max_memory_allocated() - before < logits / 3

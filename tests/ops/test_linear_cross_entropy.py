"""linear_cross_entropy against its definition: values, gradients, dtypes, compilers, and how much memory it takes."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from transnormer.errors import ConfigError
from transnormer.ops import linear_cross_entropy, linear_cross_entropy_and_hits
from transnormer.ops.linear_cross_entropy import _TORCH
from transnormer.ops.linear_cross_entropy.chunked import rows_per_chunk, scan, score_rows
from transnormer.ops.linear_cross_entropy.reference import linear_cross_entropy_reference


def problem(
    tokens: int, vocabulary: int, width: int = 12, *, bias: bool = True, dtype: torch.dtype = torch.float64
) -> tuple[list[torch.Tensor | None], torch.Tensor]:
    """[x, weight, bias] that require gradients, and targets of which every third is ignored."""
    generator = torch.Generator().manual_seed(tokens + vocabulary)
    shapes = [(tokens, width), (vocabulary, width), (vocabulary,)]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    inputs = [x.to(dtype).requires_grad_() for x in tensors]
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    targets[1::3] = -100
    return (inputs if bias else [*inputs[:2], None]), targets


def loss_and_gradients(function, inputs, targets, **options) -> list[torch.Tensor]:
    loss = function(*inputs, targets, **options)
    given = [x for x in inputs if x is not None]
    return [loss.detach(), *torch.autograd.grad(3 * loss, given)]


def assert_equals_the_reference(inputs, targets, chunk_size=None, **options) -> None:
    ours = loss_and_gradients(linear_cross_entropy, inputs, targets, chunk_size=chunk_size, **options)
    exact = loss_and_gradients(linear_cross_entropy_reference, inputs, targets, **options)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10, equal_nan=True)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("chunk_size", [None, 1, 7, 50, 64])
@pytest.mark.parametrize("vocabulary", [1, 64, 257])
def test_equals_the_reference_with_its_gradients(vocabulary, chunk_size, reduction, bias):
    assert_equals_the_reference(*problem(50, vocabulary, bias=bias), chunk_size=chunk_size, reduction=reduction)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_few_targets_and_none(tokens, reduction):
    inputs, targets = problem(tokens, 257)
    assert_equals_the_reference(inputs, targets, reduction=reduction, chunk_size=2)
    assert_equals_the_reference(inputs, torch.full_like(targets, -100), reduction=reduction, chunk_size=2)


def test_another_ignore_index_and_a_class_with_its_number():
    inputs, targets = problem(20, 30)
    targets[targets == -100] = 4
    for ignore_index in (4, 29, -1):
        assert_equals_the_reference(inputs, targets, chunk_size=6, ignore_index=ignore_index)


def test_gradcheck():
    inputs, targets = problem(5, 7, 3)
    for reduction in ("sum", "mean"):
        assert torch.autograd.gradcheck(
            lambda x, w, b, how=reduction: linear_cross_entropy(x, w, b, targets, chunk_size=2, reduction=how), inputs
        )


def test_large_logits_and_hopeless_ignored_rows_stay_finite():
    inputs, targets = problem(9, 40, dtype=torch.float32)
    with torch.no_grad():
        inputs[0][0] *= 1e4
        inputs[0][1] = torch.inf  # an ignored row
    loss, dx, _, dbias = loss_and_gradients(linear_cross_entropy, inputs, targets, chunk_size=4)
    assert loss.isfinite()
    assert dx[1].eq(0).all()
    assert dx.isfinite().all()
    assert dbias.isfinite().all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("how", ["bfloat16 tensors", "autocast"])
def test_half_precision_is_no_worse_than_the_plain_path(how, bias):
    autocast = how == "autocast"
    inputs, targets = problem(600, 1000, 64, bias=bias, dtype=torch.float32 if autocast else torch.bfloat16)
    with torch.no_grad():
        inputs[0] *= 0.3  # logits of a model that has learned something, not of one that is certain
    doubles = [None if x is None else x.detach().double().requires_grad_() for x in inputs]
    exact = loss_and_gradients(linear_cross_entropy_reference, doubles, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        ours = loss_and_gradients(linear_cross_entropy, inputs, targets, chunk_size=128)
        plain = loss_and_gradients(linear_cross_entropy_reference, inputs, targets)
    assert ours[0].dtype == torch.float32
    for a, b, c in zip(ours, plain, exact, strict=True):
        assert a.dtype == b.dtype
        error, allowed = ((x.double() - c).norm() / c.norm() for x in (a, b))
        # One rounded number may be right by chance.
        assert error <= max(2 * allowed, 1e-3 if c.dim() == 0 else 0)


def test_autocast_does_not_round_float64_nor_the_sum_over_chunks():
    inputs, targets = problem(50, 30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_equals_the_reference(inputs, targets, chunk_size=7)
    # 4,096 equal tokens in chunks of 8: a bfloat16 sum of 512 equal numbers would stop growing at 256 of them.
    x = torch.ones(4096, 8, dtype=torch.bfloat16)
    weight = torch.zeros(16, 8, dtype=torch.bfloat16, requires_grad=True)
    loss = linear_cross_entropy(x, weight, None, torch.zeros(4096, dtype=torch.long), chunk_size=8)
    (dweight,) = torch.autograd.grad(loss, weight)
    assert dweight[1:].float().unique().tolist() == [4096 / 16]
    assert dweight[0].float().unique().tolist() == [4096 * (1 / 16 - 1)]


def test_only_what_is_needed_is_computed(monkeypatch: pytest.MonkeyPatch):
    inputs, targets = problem(20, 30)
    asked: list[list[bool]] = []
    module = importlib.import_module("transnormer.ops.linear_cross_entropy")
    monkeypatch.setattr(module, "_TORCH", lambda *call: asked.append(call[-1]) or _TORCH(*call))
    assert linear_cross_entropy(*inputs, targets).requires_grad
    linear_cross_entropy(*inputs[:2], None, targets)
    with torch.no_grad():
        assert not linear_cross_entropy(*inputs, targets).requires_grad
    assert asked == [[True, True, True], [True, True, False], [False, False, False]]

    plain, scored = [tensor.detach() for tensor in inputs], []

    def score(*call):
        scored.append(call[-1])
        score_rows(*call)

    for needs, shapes in (
        ([False, True, False], [(), (), (0,), (30, 12), (0,)]),
        ([False, False, False], [(), (), (0,), (0,), (0,)]),
    ):
        results = scan(score, *plain, targets, -100, 12, torch.float64, needs)
        assert [tuple(result.shape) for result in results] == shapes
    assert scored == [True, True, False, False]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("vocabulary", [1, 64, 257])
def test_hits_are_those_of_argmax(vocabulary, bias):
    inputs, targets = problem(200, vocabulary, bias=bias)
    x, weight, b = (None if tensor is None else tensor.detach() for tensor in inputs)
    with torch.no_grad():
        x, weight = x.round(), weight.round()  # many logits are equal, of which the first counts
        b = None if b is None else b.round()
        logits = F.linear(x, weight, b)
    targets[::2] = logits.argmax(dim=1)[::2]
    loss, hits = linear_cross_entropy_and_hits(x, weight, b, targets, chunk_size=30)
    assert hits == (logits.argmax(dim=1) == targets).sum()
    torch.testing.assert_close(loss, linear_cross_entropy_reference(x, weight, b, targets))
    _, of_ignored = linear_cross_entropy_and_hits(x, weight, b, torch.full_like(targets, -100))
    assert of_ignored == 0


def test_gradients_of_some_inputs_only():
    inputs, targets = problem(20, 30)
    for needed in range(3):
        partly = [tensor if index == needed else tensor.detach() for index, tensor in enumerate(inputs)]
        (ours,) = torch.autograd.grad(linear_cross_entropy(*partly, targets, chunk_size=7), inputs[needed])
        (exact,) = torch.autograd.grad(linear_cross_entropy_reference(*partly, targets), inputs[needed])
        torch.testing.assert_close(ours, exact, atol=1e-10, rtol=1e-10)


def test_a_graph_can_be_used_twice_but_not_differentiated_twice():
    (x, weight, bias), targets = problem(20, 30)
    loss = linear_cross_entropy(x, weight, bias, targets)
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    second = torch.autograd.grad(2 * loss, x)[0]
    torch.testing.assert_close(second, 2 * first)
    with pytest.raises(ConfigError, match="cannot be differentiated again"):
        torch.autograd.grad(linear_cross_entropy(x, weight, bias, targets), x, create_graph=True)


def test_strides_do_not_matter():
    (x, weight, bias), targets = problem(50, 33)
    turned = [x.detach().T.contiguous().T, weight.detach().T.contiguous().T, bias.detach().repeat_interleave(2)[::2]]
    turned = [tensor.requires_grad_() for tensor in turned]
    ours = loss_and_gradients(linear_cross_entropy, turned, targets.repeat_interleave(2)[::2], chunk_size=9)
    exact = loss_and_gradients(linear_cross_entropy, [x, weight, bias], targets.int(), chunk_size=9)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a, b)


def test_the_same_inputs_give_the_same_bits():
    inputs, targets = problem(100, 257, dtype=torch.float32)
    runs = [loss_and_gradients(linear_cross_entropy, inputs, targets, chunk_size=30) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_a_compiler_sees_one_opaque_op(reduction):
    inputs, targets = problem(20, 30, dtype=torch.float32)

    def loss(x, weight, bias, targets):
        return linear_cross_entropy(x.tanh(), weight, bias, targets, reduction=reduction, chunk_size=7)

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        loss_and_gradients(compiled, inputs, targets), loss_and_gradients(loss, inputs, targets), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_the_op_is_registered_as_the_library_requires():
    for bias in (True, False):
        inputs, targets = problem(11, 30, bias=bias)
        torch.library.opcheck(_TORCH, (*inputs, targets, -100, 4, torch.float64, [True, True, bias]))


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation returned."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def test_the_logits_are_never_in_memory_as_a_whole():
    (x, weight, _), targets = problem(2000, 1003, 16, dtype=torch.float32)
    x, weight = x.detach(), weight.detach()
    with LargestTensor() as plain:
        linear_cross_entropy_reference(x, weight, None, targets)
    assert plain.numel >= 2000 * 1003
    with LargestTensor() as ours:
        scan(score_rows, x, weight, None, targets, -100, 50, torch.float32, [True, True, False])
    assert ours.numel == 50 * 1024  # columns are padded to a multiple of 64


def test_chunks_suit_the_device_and_the_vocabulary():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert rows_per_chunk(50_304, torch.bfloat16, gpu) == 8192
    assert rows_per_chunk(267_744, torch.bfloat16, gpu) == 4096  # fewer would leave most of a GPU idle in dx
    assert rows_per_chunk(50_304, torch.float32, cpu) == 256
    assert rows_per_chunk(256, torch.bfloat16, gpu) >= 65_536
    assert rows_per_chunk(2**40, torch.float32, cpu) == 1


def test_wrong_calls_say_what_is_wrong():
    (x, weight, bias), targets = problem(20, 30)
    with pytest.raises(ConfigError, match="did you mean 'mean'"):
        linear_cross_entropy(x, weight, bias, targets, reduction="meen")
    with pytest.raises(ConfigError, match="chunk_size must be at least 1"):
        linear_cross_entropy(x, weight, bias, targets, chunk_size=0)
    with pytest.raises(ConfigError, match=r"x must be \[N, d\].*flatten"):
        linear_cross_entropy(x[None], weight, bias, targets)
    with pytest.raises(ConfigError, match=r"weight must be \[V, 12\], got \[30, 11\]"):
        linear_cross_entropy(x, weight[:, 1:], bias, targets)
    with pytest.raises(ConfigError, match=r"bias must be \[30\], got \[29\]"):
        linear_cross_entropy(x, weight, bias[1:], targets)
    with pytest.raises(ConfigError, match=r"targets must be \[20\] class indices, got \[19\]"):
        linear_cross_entropy(x, weight, bias, targets[1:])
    with pytest.raises(ConfigError, match=r"torch\.float32"):
        linear_cross_entropy(x, weight, bias, targets.float())
    with pytest.raises(ConfigError, match=r"one dtype.*autocast"):
        linear_cross_entropy(x.bfloat16(), weight, bias, targets)
    with pytest.raises(ConfigError, match="backend 'triton' cannot run"):
        linear_cross_entropy(x, weight, bias, targets, backend="triton")
    with pytest.raises(RuntimeError, match="out of bounds"):
        linear_cross_entropy(x, weight, bias, torch.full_like(targets, 30))


def test_the_reference_is_the_textbook_formula():
    (x, weight, bias), targets = problem(10, 20)
    scored = targets != -100
    logits = x @ weight.T + bias
    expected = -logits.softmax(-1).log()[scored, targets[scored]].sum()
    torch.testing.assert_close(linear_cross_entropy_reference(x, weight, bias, targets), expected)
    assert F.cross_entropy(logits, targets) == linear_cross_entropy_reference(
        x, weight, bias, targets, reduction="mean"
    )

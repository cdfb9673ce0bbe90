"""Contract tests of every registered mixer; a new file in mixers/ is covered from the day it exists."""

from __future__ import annotations

import pkgutil
import re

import pytest
import torch

import transnormer.mixers
from transnormer.errors import ConfigError
from transnormer.mixers.registry import build_mixer, list_mixers, mixer_class, mixer_options

HIDDEN, HEADS = 32, 4
TOLERANCE = 1e-10


# Small blocks, so that methods which are dense on short inputs show their sparse form within the lengths used here.
SPARSE = {
    "bigbird": {"block_size": 4, "num_random_blocks": 1},
    "informer": {"factor": 1},
    "reformer": {"chunk_size": 8, "num_buckets": 6},
}


def variants() -> list[tuple[str, bool, dict]]:
    """(name, causal, options): every mixer in each direction it claims, plain and with rotations where it has them."""
    cases = []
    for name in list_mixers():
        traits = mixer_class(name).traits
        options: list[dict] = [{}]
        if "position" in mixer_options(name):
            options += [{"position": "rope"}, {"position": "lrpe"}]
        if name == "diag":
            options += [{"kind": "rela", "position": "lrpe"}]
        if name == "linear_elu":
            options += [{"scaling": False}]
        if name in SPARSE:
            options += [SPARSE[name]]
        for causal in (True, False):
            if (causal and traits.causal) or (not causal and traits.bidirectional):
                cases += [(name, causal, chosen) for chosen in options]
    return cases


def label(case: tuple[str, bool, dict]) -> str:
    name, causal, options = case
    chosen = "sparse" if options == SPARSE.get(name) else "-".join(map(str, options.values()))
    return "-".join(filter(None, [name, "causal" if causal else "full", chosen]))


ALL = pytest.mark.parametrize("case", variants(), ids=label)
CAUSAL = pytest.mark.parametrize("case", [c for c in variants() if c[1]], ids=label)


def build(case: tuple[str, bool, dict], max_length: int = 256) -> torch.nn.Module:
    name, causal, options = case
    torch.manual_seed(0)
    mixer = build_mixer(name, hidden_size=HIDDEN, num_heads=HEADS, causal=causal, max_length=max_length, **options)
    return mixer.double().eval()


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(batch, length, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@ALL
def test_any_length_gives_finite_output_of_the_same_shape(case):
    mixer = build(case)
    for length in (1, 2, 3, 63, 64, 65, 130):
        y = mixer(tokens(2, length))
        assert y.shape == (2, length, HIDDEN)
        assert y.isfinite().all()


@ALL
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_lies_in_padding_reaches_nothing(case, poison):
    mixer = build(case).train()
    mask = torch.ones(2, 70, dtype=torch.bool)
    mask[0, 40:], mask[1, 3] = False, False

    def result(filling: float) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = tokens(2, 70).masked_fill(~mask[..., None], filling).requires_grad_()
        y = mixer(x, mask)[mask]
        return [y, *torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()], allow_unused=True)]

    for found, expected in zip(result(poison), result(0.0), strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)


@ALL
def test_a_batch_without_sequences_gives_one_back(case):
    mixer, x = build(case).train(), tokens(0, 70).requires_grad_()
    for mask in (None, torch.ones(0, 70, dtype=torch.bool)):
        y = mixer(x, mask=mask)
        assert y.shape == (0, 70, HIDDEN)
        y.sum().backward()


@CAUSAL
def test_a_token_changes_nothing_before_it_bit_for_bit(case):
    mixer = build(case)
    x = tokens(2, 150)
    before = mixer(x)
    for position in (1, 40, 63, 64, 65, 149):
        changed = x.clone()
        changed[:, position] += 3.0
        after = mixer(changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.equal(after[:, position:], before[:, position:])


@ALL
@pytest.mark.parametrize("where", ["right", "left", "scattered"])
def test_padding_never_changes_a_real_position(case, where):
    mixer = build(case)
    total = 140
    lengths = (140, 101, 64, 1)
    real = tokens(len(lengths), total)
    padded, mask = tokens(len(lengths), total, seed=2) * 10, torch.zeros(len(lengths), total, dtype=torch.bool)
    for row, length in enumerate(lengths):
        order = torch.randperm(total, generator=torch.Generator().manual_seed(row))[:length].sort().values
        slots = {"right": torch.arange(length), "left": torch.arange(total - length, total), "scattered": order}[where]
        padded[row, slots] = real[row, :length]
        mask[row, slots] = True
    y = mixer(padded, mask)
    assert y.isfinite().all()
    for row, length in enumerate(lengths):
        alone = mixer(real[row : row + 1, :length])[0]
        torch.testing.assert_close(y[row][mask[row]], alone, atol=TOLERANCE, rtol=0)


@ALL
def test_mask_may_be_integers(case):
    mixer = build(case)
    mask = torch.ones(2, 70, dtype=torch.long)
    mask[1, 50:] = 0
    assert torch.equal(mixer(tokens(2, 70), mask), mixer(tokens(2, 70), mask.bool()))


@ALL
def test_a_wrong_input_is_named_with_what_was_expected(case):
    mixer, x, mask = build(case), tokens(2, 70), torch.ones(2, 70, dtype=torch.bool)
    wanted = rf"{case[0]}: x must be \[B, T, {HIDDEN}\] with T ≥ 1, got "
    for wrong in (x[0], x[None], x[..., :-1], x[:, :0]):
        with pytest.raises(ConfigError, match=wanted + re.escape(str(list(wrong.shape)))):
            mixer(wrong)
    with pytest.raises(ConfigError, match=rf"{case[0]}: x must have a floating-point dtype, got torch\.int64"):
        mixer(x.long())
    with pytest.raises(ConfigError, match=f"{case[0]}: x must be a tensor, got ndarray"):
        mixer(x.numpy())
    for wrong in (mask[:, :-1], mask[:1], mask.T, mask[..., None]):
        for packed in (False, True):
            with pytest.raises(ConfigError, match=rf"{case[0]}: mask must be \[B, T\] = \[2, 70\], got"):
                mixer(x, wrong, packed=packed)
    with pytest.raises(ConfigError, match=f"{case[0]}: mask must be bool or integers"):
        mixer(x, mask.float())


@ALL
def test_a_row_does_not_depend_on_its_batch(case):
    mixer = build(case)
    x = tokens(3, 130)
    together = mixer(x)
    for row in range(3):
        torch.testing.assert_close(together[row : row + 1], mixer(x[row : row + 1]), atol=TOLERANCE, rtol=0)


@ALL
def test_gradients_are_those_of_finite_differences(case):
    mixer = build(case)
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    x = tokens(2, 5).requires_grad_()
    # Projections to random directions keep the check small: the gradient of each to all inputs and parameters.
    weights = torch.randn(3, 2, 5, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    parameters = [p for p in mixer.parameters() if p.requires_grad]

    def directions(x: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return (weights * mixer(x, mask) * mask[..., None]).sum(dim=(1, 2, 3))

    assert torch.autograd.gradcheck(directions, (x, *parameters), fast_mode=True)


@CAUSAL
def test_step_equals_parallel(case):
    mixer, x = build(case), tokens(2, 200)
    with torch.no_grad():
        steps = step_through(mixer, x, mixer.init_state(2))
        for length in (1, 63, 64, 65, 200):
            torch.testing.assert_close(steps[:, :length], mixer(x[:, :length]), atol=TOLERANCE, rtol=0)


@pytest.mark.reliability("R15")
@CAUSAL
def test_step_equals_parallel_at_a_thousand_tokens(case):
    if case[2] and case[2].get("position") != "lrpe":
        pytest.skip("the longest run is made once per mixer")
    mixer, x = build(case, max_length=1024), tokens(2, 1000)
    with torch.no_grad():
        prefix, state = mixer(x[:, :900], None, mixer.init_state(2))
        steps = torch.cat([prefix, step_through(mixer, x[:, 900:], state)], dim=1)
        torch.testing.assert_close(steps, mixer(x), atol=TOLERANCE, rtol=0)


def step_through(mixer: torch.nn.Module, x: torch.Tensor, state: dict) -> torch.Tensor:
    """The outputs of one token after the other."""
    steps = []
    for t in range(x.shape[1]):
        y, state = mixer(x[:, t : t + 1], None, state)
        steps.append(y)
    return torch.cat(steps, dim=1)


@CAUSAL
def test_pieces_of_a_left_padded_batch_equal_the_whole(case):
    mixer = build(case)
    x, mask = tokens(3, 150), torch.ones(3, 150, dtype=torch.bool)
    mask[1, :10], mask[2, :70] = False, False
    with torch.no_grad():
        whole = mixer(x, mask)
        state, pieces = mixer.init_state(3), []
        for start, stop in ((0, 90), (90, 91), (91, 92), (92, 129), (129, 150)):
            y, state = mixer(x[:, start:stop], mask[:, start:stop], state)
            pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, dim=1)[mask], whole[mask], atol=TOLERANCE, rtol=0)
    assert state["length"].tolist() == [150, 140, 80]


@pytest.mark.reliability("R15")
@CAUSAL
def test_recurrent_means_a_state_of_constant_size(case):
    mixer = build(case, max_length=1024)
    state, sizes = mixer.init_state(1), []
    with torch.no_grad():
        for _ in range(4):
            _, state = mixer(tokens(1, 200), None, state)
            sizes.append(sum(tensor.nbytes for tensor in state.values()))
    assert (len(set(sizes)) == 1) == mixer.traits.recurrent


@ALL
def test_saved_and_loaded_is_equal(case, tmp_path):
    mixer, other = build(case), build(case)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(4)) * 0.1)
    torch.save(mixer.state_dict(), tmp_path / "mixer.pt")
    other.load_state_dict(torch.load(tmp_path / "mixer.pt", weights_only=True))
    assert torch.equal(mixer(tokens(1, 70)), other(tokens(1, 70)))


@ALL
def test_evaluation_is_deterministic(case):
    mixer = build(case)
    first = mixer(tokens(2, 130))
    torch.manual_seed(99)
    assert torch.equal(first, mixer(tokens(2, 130)))


@ALL
def test_training_mode_reaches_every_parameter(case):
    mixer = build(case).train()
    mixer(tokens(2, 130)).square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", list_mixers())
def test_bad_requests_are_errors_when_built(name):
    arguments = {"hidden_size": HIDDEN, "num_heads": HEADS, "causal": mixer_class(name).traits.causal, "max_length": 64}
    with pytest.raises(ConfigError, match="no option 'blok_size'"):
        build_mixer(name, **arguments, blok_size=3)
    for argument in ("hidden_size", "num_heads", "max_length"):
        with pytest.raises(ConfigError, match=f"{name}: {argument} must be at least 1, got 0"):
            build_mixer(name, **{**arguments, argument: 0})
    if "dropout" in mixer_options(name):
        for wrong in (-0.1, 1.0, float("nan")):
            with pytest.raises(ConfigError, match=rf"dropout.* must lie in \[0, 1\), got {wrong}"):
                build_mixer(name, **arguments, dropout=wrong)
    if not mixer_class(name).traits.causal:
        with pytest.raises(ConfigError, match="causal"):
            build_mixer(name, **{**arguments, "causal": True})


def test_unknown_mixer_suggests_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'softmax'"):
        build_mixer("sofmax", hidden_size=HIDDEN, num_heads=HEADS, causal=True, max_length=64)


def test_a_file_of_the_zoo_is_a_mixer_by_its_name():
    files = {file.name for file in pkgutil.iter_modules(transnormer.mixers.__path__) if not file.ispkg}
    assert files == {*list_mixers(), "contract", "registry"}

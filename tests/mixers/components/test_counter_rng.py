"""Draws that are a function of seed and coordinates: repeatable, independent of shape, uniform, different per seed."""

from __future__ import annotations

import torch

from transnormer.mixers.components.counter_rng import draw_below, fresh_seed, hashed


def test_a_draw_depends_on_its_coordinates_alone():
    wide = hashed(7, torch.arange(50)[:, None], torch.arange(40))
    narrow = hashed(7, torch.arange(9)[:, None], torch.arange(3, 5))
    assert torch.equal(wide[:9, 3:5], narrow)
    assert torch.equal(wide, hashed(torch.tensor(7), torch.arange(50)[:, None], torch.arange(40)))


def test_the_numbers_never_change():
    """Saved models rely on them: a change here changes what they compute."""
    assert hashed(0, torch.arange(3)).tolist() == [4123250604, 3951468376, 3784677759]


def test_coordinates_and_seeds_are_all_told_apart():
    grid = torch.stack([hashed(seed, torch.arange(60)[:, None], torch.arange(60)) for seed in range(20)])
    # 72000 numbers of 32 bits have about half a pair in common.
    assert grid.unique().numel() > grid.numel() - 10
    assert (grid >= 0).all()
    assert (grid < 2**32).all()


def test_draws_are_uniform_and_uncorrelated():
    draws = draw_below(10, 3, torch.arange(400)[:, None], torch.arange(500))
    counts = draws.flatten().bincount(minlength=10).double()
    assert counts.numel() == 10
    assert ((counts - 20_000) ** 2 / 20_000).sum() < 30  # chi-square of 9 degrees of freedom: 28 is 1 in 1000
    centred = draws.double() - 4.5
    for shifted in (centred.roll(1, 0), centred.roll(1, 1), centred.roll((1, 1), (0, 1))):
        assert ((centred * shifted).mean() / centred.square().mean()).abs() < 0.01


def test_a_fresh_seed_follows_the_global_generator():
    torch.manual_seed(1)
    first, second = fresh_seed(torch.device("cpu")), fresh_seed(torch.device("cpu"))
    torch.manual_seed(1)
    assert first != second
    assert first == fresh_seed(torch.device("cpu"))

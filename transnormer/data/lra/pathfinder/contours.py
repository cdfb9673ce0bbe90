"""The contours of pictures: a pair of long ones in each, grown alternately, then short ones to distract."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from transnormer.data.lra.pathfinder.growth import Chain, Taken, extend
from transnormer.data.lra.pathfinder.settings import DISTRACTOR_TRIES, LEAST_FREE, PADDLE_TRIES
from transnormer.data.lra.pathfinder.stamps import FREE_UP_TO, FULL, NUM_SEEDS, Stamps


def grow_pairs(stamps: Stamps, rng: np.random.Generator, count: int) -> tuple[np.ndarray, Taken]:
    """The first `count` pairs that reach full length, [count, 2, paddles, (paddle, anchor)], and what they take."""
    trails: list[np.ndarray] = []
    taken: list[Taken] = []
    while sum(map(len, trails)) < count:
        trail, rest = _cohort(stamps, rng)
        trails.append(trail)
        taken.append(rest)
    if not trails:
        return np.empty((0, 2, stamps.settings.contour_length, 2), dtype=np.int64), _empty(stamps, 0)
    mask, halo = np.concatenate([each.mask for each in taken]), np.concatenate([each.halo for each in taken])
    return np.concatenate(trails)[:count], Taken(mask[:count], halo[:count])


def _cohort(stamps: Stamps, rng: np.random.Generator) -> tuple[np.ndarray, Taken]:
    """The pairs that succeed among as many attempts as the settings say: most contours run into something."""
    settings, attempts = stamps.settings, stamps.settings.cohort
    taken = _empty(stamps, attempts)
    trail = np.empty((2, attempts, settings.contour_length, 2), dtype=np.int64)
    pair = list(_pair_seeds(stamps, rng, attempts))
    for number in range(settings.contour_length):
        for which, other in ((0, 1), (1, 0)):
            if number:
                pair[which] = extend(stamps, rng, taken, pair[which])
                pair[other] = pair[other].of(np.searchsorted(pair[other].rows, pair[which].rows))
            pair[which].record(trail[which], number)
    # The last paddle of the first contour is never taken, as in the original: a distractor may cross it.
    taken.add(stamps, pair[1])
    rows = pair[1].rows
    return trail[:, rows].swapaxes(0, 1), taken.of(rows)


def _pair_seeds(stamps: Stamps, rng: np.random.Generator, attempts: int) -> tuple[Chain, Chain]:
    """The first paddles: one in the middle of the picture, one at the seed distance from it in any direction."""
    # An attempt in a direction without room fails at once and is repeated, so only the others need to be drawn.
    tails = _central_tails(stamps)
    room = np.array([len(places) for places in tails])
    direction = rng.choice(np.flatnonzero(room), size=attempts)
    chosen = (rng.random(attempts) * room[direction]).astype(np.int64)
    tail = np.array([tails[d][c] for d, c in zip(direction, chosen, strict=True)])
    apart = stamps.settings.seed_distance * stamps.seed_directions[rng.integers(NUM_SEEDS, size=attempts)]
    other_tail = stamps.flat(np.rint(stamps.places(tail) + apart) + stamps.border)
    rows = np.arange(attempts)
    second = _seeded(stamps, rows, rng.integers(NUM_SEEDS, size=attempts), other_tail)
    return _seeded(stamps, rows, direction, tail), second


def grow_distractors(stamps: Stamps, rng: np.random.Generator, taken: Taken) -> list[list[np.ndarray]]:
    """For each picture its short contours, [paddles, (paddle, anchor)] each; those that find no place are left out."""
    settings, pictures = stamps.settings, len(taken.mask)
    found: list[list[np.ndarray]] = [[] for _ in range(pictures)]
    trail = np.empty((pictures, settings.distractor_length, 2), dtype=np.int64)
    for _ in range(settings.num_distractors):
        waiting: np.ndarray = np.arange(pictures)
        for _ in range(DISTRACTOR_TRIES):
            chain = _distractor_seeds(stamps, rng, taken, waiting)
            before = taken.of(chain.rows)
            begun = chain.rows
            chain.record(trail, 0)
            for number in range(1, settings.distractor_length):
                chain = extend(stamps, rng, taken, chain)
                chain.record(trail, number)
            taken.add(stamps, chain)
            failed = np.flatnonzero(~np.isin(begun, chain.rows))
            taken.put(begun[failed], before.of(failed))
            for row in chain.rows:
                found[row].append(trail[row].copy())
            waiting = waiting[~np.isin(waiting, chain.rows)]
    return found


def _distractor_seeds(stamps: Stamps, rng: np.random.Generator, taken: Taken, pictures: np.ndarray) -> Chain:
    """A first paddle anywhere in the free part of each picture, where there is room for it."""
    found: list[tuple[int, int, int]] = []
    for row in pictures:
        if np.count_nonzero((taken.mask[row] <= FREE_UP_TO) & stamps.inside) < LEAST_FREE * stamps.settings.size**2:
            continue
        for _ in range(PADDLE_TRIES):
            direction = int(rng.integers(NUM_SEEDS))
            places = _free_tails(stamps, taken.mask[row], direction)
            if not len(places):
                break
            tail = int(rng.choice(places))
            ends = stamps.head_and_pivot(np.array([tail]), np.array([direction]))
            if stamps.inside[np.concatenate(ends)].all():
                found.append((row, direction, tail))
                break
    rows, directions, tails = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return _seeded(stamps, rows, directions, tails)


def _seeded(stamps: Stamps, rows: np.ndarray, direction: np.ndarray, tail: np.ndarray) -> Chain:
    return Chain(rows, direction, tail, stamps.head_and_pivot(tail, direction)[1])


def _free_tails(stamps: Stamps, mask: np.ndarray, direction: int) -> np.ndarray:
    """Where a first paddle of this direction finds its footprint free."""
    if not stamps.can_seed[direction]:
        return np.empty(0, dtype=np.int64)
    size, border = stamps.settings.size, stamps.border
    full = ((mask > FREE_UP_TO) & stamps.inside).reshape(stamps.width, stamps.width)
    blocked = np.zeros((size, size), dtype=bool)
    for y, x in stamps.footprints[direction] + border:
        blocked |= full[y : y + size, x : x + size]
    y, x = np.nonzero(~blocked)
    return (y + border) * stamps.width + x + border


@lru_cache(maxsize=4)
def _central_tails(stamps: Stamps) -> list[np.ndarray]:
    """For each direction, where the first contour may begin: twice the seed distance away from the picture's edges."""
    mask = _framed(stamps, 2 * stamps.settings.seed_distance)
    return [_free_tails(stamps, mask, direction) for direction in range(NUM_SEEDS)]


def _empty(stamps: Stamps, pictures: int) -> Taken:
    """Pictures in which only the padding along their edges is taken."""
    padding = stamps.settings.padding
    mask, halo = _framed(stamps, padding), _framed(stamps, padding + stamps.margin)
    return Taken(np.tile(mask, (pictures, 1)), np.tile(halo, (pictures, 1)))


def _framed(stamps: Stamps, thickness: int) -> np.ndarray:
    """A flat canvas that is full along the edges of the picture."""
    canvas = np.zeros((stamps.width, stamps.width), dtype=np.uint8)
    edge, inner = stamps.border, stamps.border + thickness
    canvas[edge:-edge, edge:-edge] = FULL
    canvas[inner:-inner, inner:-inner] = 0
    return canvas.ravel()

"""One more paddle for a contour in each of many pictures: where it may go, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transnormer.data.lra.pathfinder.settings import PADDLE_TRIES
from transnormer.data.lra.pathfinder.stamps import FULL, NUM_SEEDS, Pixels, Stamps

DEAD_END = 1e-4  # a contour ends where the weights of all its headings sum to less


@dataclass
class Taken:
    """What is taken of each picture, 0 .. 255, and the same dilated by the margin: [pictures, pixels of the canvas]."""

    mask: np.ndarray
    halo: np.ndarray

    def add(self, stamps: Stamps, chain: Chain) -> None:
        """Takes the last paddle of each of these contours."""
        stamp(self.mask, stamps.masks, chain.rows, chain.paddle, chain.anchor)
        # The halo of pixels outside the picture reaches no further in than that of its border, which is full already.
        stamp(self.halo, stamps.halos, chain.rows, chain.paddle, chain.anchor)

    def of(self, rows: np.ndarray) -> Taken:
        """A copy of some of the pictures."""
        return Taken(self.mask[rows], self.halo[rows])

    def put(self, rows: np.ndarray, other: Taken) -> None:
        """Replaces some of the pictures."""
        self.mask[rows], self.halo[rows] = other.mask, other.halo


@dataclass
class Chain:
    """One contour in each of some pictures: the picture, the last paddle, and that paddle's anchor and pivot."""

    rows: np.ndarray
    paddle: np.ndarray
    anchor: np.ndarray
    pivot: np.ndarray

    def of(self, kept: np.ndarray) -> Chain:
        """Some of the contours."""
        return Chain(self.rows[kept], self.paddle[kept], self.anchor[kept], self.pivot[kept])

    def record(self, trail: np.ndarray, number: int) -> None:
        """Notes the last paddle down in trail [pictures, paddles, (paddle, anchor)]."""
        trail[self.rows, number, 0], trail[self.rows, number, 1] = self.paddle, self.anchor


def stamp(canvas: np.ndarray, pixels: Pixels, rows: np.ndarray, paddle: np.ndarray, anchor: np.ndarray) -> None:
    """canvas[row] = max(canvas[row], a paddle at its anchor), for one paddle in each of the rows."""
    places = (anchor + rows * canvas.shape[1])[:, None] + pixels.offsets[paddle]
    flat = canvas.reshape(-1)
    flat[places] = np.maximum(flat[places], pixels.values[paddle])


def extend(stamps: Stamps, rng: np.random.Generator, taken: Taken, chain: Chain) -> Chain:
    """The contours with one paddle more; those that find no place for it are dropped.

    A heading is drawn by how straight it goes on and how free its head is; where its paddle would cross what is taken,
    it is drawn again. A paddle is taken only when its successor lies, because the two may touch.
    """
    pivot = stamps.next_pivot(chain.pivot, chain.paddle)
    heads = pivot[:, None] + stamps.head_offsets  # [contours, headings]
    free = FULL - taken.halo.reshape(-1)[heads + (chain.rows * taken.halo.shape[1])[:, None]]
    weight = free * stamps.inside[heads] * (stamps.straightness[chain.paddle] / FULL)
    summed = np.cumsum(weight, axis=1)
    heading = np.full(len(pivot), -1)
    trying = np.flatnonzero(summed[:, -1] >= DEAD_END)
    for _ in range(PADDLE_TRIES):
        sums = summed[trying]
        draw = rng.random(len(trying)) * sums[:, -1]
        choice = np.minimum((sums <= draw[:, None]).sum(axis=1), sums.shape[1] - 1)
        fits = _fits(stamps, taken, chain.rows[trying], heads[trying, choice], NUM_SEEDS + choice)
        heading[trying[fits]] = choice[fits]
        trying = trying[~fits]
    kept = np.flatnonzero(heading >= 0)
    taken.add(stamps, chain.of(kept))
    choice = heading[kept]
    return Chain(chain.rows[kept], NUM_SEEDS + choice, heads[kept, choice], pivot[kept])


def _fits(stamps: Stamps, taken: Taken, rows: np.ndarray, anchor: np.ndarray, paddle: np.ndarray) -> np.ndarray:
    places = anchor[:, None] + stamps.limits.offsets[paddle]
    mask = taken.mask.reshape(-1)[places + (rows * taken.mask.shape[1])[:, None]]
    return ((mask < stamps.limits.values[paddle]) | ~stamps.inside[places]).all(axis=1)

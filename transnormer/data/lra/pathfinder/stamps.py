"""All about a paddle that does not depend on where it lies, computed once: what it draws, blocks and allows next.

A contour is a chain of paddles. The first lies in one of 360 directions, each later one ends on a pixel of the circle
around the pivot that its predecessor leaves behind, so there are 360 + some twenty to fifty different paddles in all.
Pictures are flat arrays with a border wide enough for every paddle, so that a pixel of a paddle is one added offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from transnormer.data.lra.pathfinder.settings import ANTIALIAS, SETTINGS

FULL = 255
FREE_UP_TO = 76  # a pixel counts as free up to 0.3 of full
COLLISION = 459  # 1.8 of full: the sum of what is taken and what a paddle takes must stay below
NUM_SEEDS = 360  # directions of a first paddle, -180 .. 179 degrees


@dataclass(frozen=True)
class Pixels:
    """For each paddle its pixels, as offsets from its anchor, and values; short lists repeat their first pixel."""

    offsets: np.ndarray  # [paddles, pixels]
    values: np.ndarray  # [paddles, pixels]


class Stamps:
    """The paddles of one picture size and margin: first the 360 seeds, then the headings.

    The anchor of a seed is its tail, that of a heading its head: paddles are drawn from there.
    """

    def __init__(self, size: int, margin: int) -> None:
        self.settings = settings = SETTINGS[size]
        self.margin = margin
        length, step = settings.paddle_length, settings.paddle_length + margin
        self.border = length + 2 * margin + step + 1  # a pivot may leave the picture, and a paddle reaches beyond it
        self.width = size + 2 * self.border
        inside = np.zeros((self.width, self.width), dtype=bool)
        inside[self.border : -self.border, self.border : -self.border] = True
        self.inside = inside.ravel()  # which pixels of the canvas are in the picture

        self.heads = _circle(step)  # (y, x) of a heading's head from its pivot
        seeds = [degrees * math.pi / 180 for degrees in range(-180, 180)]
        headings = [math.atan2(y, x) for y, x in self.heads]
        drawn = seeds + _reversed(headings)  # a heading is drawn from its head backwards
        pictures = [_paddle(settings.paddle_length, settings.paddle_thickness, margin, angle) for angle in drawn]
        self.lines = self._pixels([line for line, _ in pictures])
        self.masks = self._pixels([mask for _, mask in pictures])
        self.halos = self._pixels([_dilated(mask, margin) for _, mask in pictures])
        # A pixel that is taken by this much is too much for the paddle; pixels that no other can exclude are left out.
        limits = self._pixels([np.where(mask >= COLLISION - FULL, mask, 0) for _, mask in pictures])
        self.limits = Pixels(limits.offsets, COLLISION - limits.values.astype(np.int16))

        self.head_offsets = self.flat(self.heads)
        self._to_next_pivot = self._moves(seeds + headings, length + 2 * margin)
        self._to_head, self._back_to_pivot = self._moves(seeds, length), self._moves(_reversed(seeds), step)
        turn = np.abs(np.array(headings)[None, :] - np.array(seeds + headings)[:, None])
        turn = np.minimum(turn, 2 * math.pi - turn) * settings.continuity
        self.straightness = np.cos(np.minimum(turn, math.pi / 2)) ** 2  # [paddles, headings]

        self.seed_directions = _unit(seeds)  # (y, x)
        self.footprints = [_footprint(mask, step) for _, mask in pictures[:NUM_SEEDS]]
        self.can_seed = np.array([_covers(footprint, size) for footprint in self.footprints])
        # (y, x) of tail and head from the anchor, which is one of them.
        self.ends = np.zeros((len(drawn), 4))
        self.ends[:NUM_SEEDS, 2:] = length * self.seed_directions
        self.ends[NUM_SEEDS:, :2] = length * _unit(drawn[NUM_SEEDS:])

    def flat(self, vectors: np.ndarray) -> np.ndarray:
        """(y, x) on the canvas as one offset into it."""
        return (vectors[..., 0] * self.width + vectors[..., 1]).astype(np.int64)

    def places(self, offsets: np.ndarray) -> np.ndarray:
        """Offsets into the canvas as (y, x) in the picture."""
        return np.stack(np.divmod(offsets, self.width), axis=-1) - self.border

    def next_pivot(self, pivot: np.ndarray, paddle: np.ndarray) -> np.ndarray:
        """The pivot that each of these paddles leaves for its successor, given its own."""
        return self._moved(self._to_next_pivot, pivot, paddle)

    def head_and_pivot(self, tail: np.ndarray, direction: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of first paddles."""
        head = self._moved(self._to_head, tail, direction)
        return head, self._moved(self._back_to_pivot, head, direction)

    def _moves(self, angles: list[float], distance: int) -> np.ndarray:
        """Where a move leads on the canvas, rounded up to whole pixels: [(y, x), directions, coordinate].

        sin(pi) is not 0 in floating point: added to a small coordinate it rounds up to a pixel, to a large one not.
        The original has that too; without it, contours along the upper and left edges run on straighter than there.
        """
        start = np.arange(self.width) - self.border
        return _rounded_up(start + distance * _unit(angles).T[:, :, None]) + self.border

    def _moved(self, moves: np.ndarray, places: np.ndarray, direction: np.ndarray) -> np.ndarray:
        y, x = np.divmod(places, self.width)
        return moves[0, direction, y] * self.width + moves[1, direction, x]

    def _pixels(self, pictures: list[np.ndarray]) -> Pixels:
        found = [np.argwhere(picture) for picture in pictures]
        most = max(map(len, found))
        offsets, values = np.empty((len(found), most), dtype=np.int64), np.empty((len(found), most), dtype=np.uint8)
        for paddle, (places, picture) in enumerate(zip(found, pictures, strict=True)):
            places = np.concatenate([places, np.repeat(places[:1], most - len(places), axis=0)])
            offsets[paddle] = self.flat(places - len(picture) // 2)
            values[paddle] = picture[places[:, 0], places[:, 1]]
        return Pixels(offsets, values)


@lru_cache(maxsize=4)
def stamps_for(size: int, margin: int) -> Stamps:
    """The paddles of a picture size and margin."""
    return Stamps(size, margin)


def resized(picture: np.ndarray, side: int) -> np.ndarray:
    """A drawing of values 0 and 255, scaled down by Lanczos' filter."""
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.LANCZOS))


def _paddle(length: int, thickness: float, margin: int, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """The line that a paddle draws from the centre, and the pixels that it then takes: the line and its margin."""
    half = length + math.ceil(thickness) + margin
    centre = half * ANTIALIAS
    canvas = Image.new("L", (2 * centre + 1, 2 * centre + 1))
    y, x = _rounded_up(centre + length * ANTIALIAS * _unit([angle]))[0].tolist()
    ImageDraw.Draw(canvas).line([(centre, centre), (x, y)], fill=FULL, width=round(thickness * ANTIALIAS))
    drawn = np.asarray(canvas)
    return resized(drawn, 2 * half + 1), resized(_dilated(drawn, margin * ANTIALIAS, grow=False), 2 * half + 1)


def _dilated(picture: np.ndarray, radius: int, grow: bool = True) -> np.ndarray:
    """The maximum over a disc around each pixel; `grow` widens the canvas by the radius."""
    side = len(picture)
    out = np.zeros((side + 2 * radius, side + 2 * radius), dtype=picture.dtype)
    for y, x in np.argwhere(disc(radius)):
        part = out[y : y + side, x : x + side]
        np.maximum(part, picture, out=part)
    return out if grow else out[radius : radius + side, radius : radius + side]


def disc(radius: float) -> np.ndarray:
    """The pixels within a distance of the middle one."""
    reach = math.floor(radius)
    y, x = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    return np.asarray(x**2 + y**2 <= radius**2)


def _circle(radius: int) -> np.ndarray:
    """The different pixels (y, x) met on a circle around a pixel, taking one sample per pixel of its length."""
    angles = np.arange(0, 360, 360 / (2 * math.pi * radius)) * math.pi / 180
    return np.unique(np.floor(radius * _unit(angles.tolist())).astype(np.int64), axis=0)


def _unit(angles: list[float]) -> np.ndarray:
    """(y, x) of directions; by `math`, whose last digits depend less on the processor than numpy's."""
    return np.array([(math.sin(angle), math.cos(angle)) for angle in angles])


def _reversed(angles: list[float]) -> list[float]:
    return [angle + math.pi if angle < 0 else angle - math.pi for angle in angles]


def _rounded_up(coordinates: np.ndarray) -> np.ndarray:
    return np.ceil(coordinates).astype(np.int64)


def _footprint(mask: np.ndarray, reach: int) -> np.ndarray:
    """Offsets (y, x) from a tail that must be free for a seed: the pixels that it takes in full.

    As in the original, they lie one pixel lower and further right than the paddle that is then drawn.
    """
    offsets = np.argwhere(mask == FULL) - len(mask) // 2 + 1
    return offsets[(np.abs(offsets) <= reach).all(axis=1)]


def _covers(footprint: np.ndarray, size: int) -> bool:
    """Whether, wherever the tail lies, some pixel of the footprint is inside the picture.

    The original takes a picture with any tail that is not so covered for full, whatever is in it, and starts no contour
    in that direction. At size 32 this leaves about one direction in twelve.
    """
    covered = np.zeros((size, size), dtype=bool)
    for y, x in footprint:
        covered[max(0, -y) : size - max(0, y), max(0, -x) : size - max(0, x)] = True
    return bool(covered.all())

"""Pictures from contours: strokes of two contrasts, two markers, and 8-bit gray levels that use the whole range."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from transnormer.data.lra.pathfinder.growth import stamp
from transnormer.data.lra.pathfinder.settings import ANTIALIAS, SETTINGS
from transnormer.data.lra.pathfinder.stamps import FULL, Stamps, disc, resized


def draw(stamps: Stamps, pairs: np.ndarray, distractors: list[list[np.ndarray]], markers: np.ndarray) -> np.ndarray:
    """[pictures, size, size] uint8 from contours as they were grown and the (y, x) of markers [pictures, 2, 2]."""
    settings, everywhere = stamps.settings, np.arange(len(pairs))
    contours, shorts = np.zeros((2, len(pairs), stamps.width**2), dtype=np.uint8)
    for contour in pairs.swapaxes(0, 1):
        _add_strokes(stamps, contours, everywhere, contour)
    for number in range(settings.num_distractors):
        rows = [row for row, found in enumerate(distractors) if len(found) > number]
        if rows:
            _add_strokes(stamps, shorts, np.array(rows), np.stack([distractors[row][number] for row in rows]))
    light = np.maximum(_light(settings.contour_contrast)[contours], _light(settings.distractor_contrast)[shorts])
    pictures = light[:, stamps.inside].reshape(-1, settings.size, settings.size).astype(np.float64)
    for picture, places in zip(pictures, markers, strict=True):
        for y, x in places:
            np.maximum(picture, _marker(settings.size, int(y), int(x)) / FULL, out=picture)
    return _full_range(pictures)


def positions(stamps: Stamps, trail: np.ndarray) -> np.ndarray:
    """Where paddles lie: (y, x) of the tail and (y, x) of the head, [..., 4], from trail [..., (paddle, anchor)]."""
    return np.tile(stamps.places(trail[..., 1]), 2) + stamps.ends[trail[..., 0]]


def _add_strokes(stamps: Stamps, canvas: np.ndarray, rows: np.ndarray, trail: np.ndarray) -> None:
    for paddle, anchor in trail.transpose(1, 2, 0):
        stamp(canvas, stamps.lines, rows, paddle, anchor)


def _light(contrast: float) -> np.ndarray:
    """What each value of a stroke adds to a picture; float32 as in the original, so that halves are rounded alike."""
    return (np.arange(FULL + 1) / FULL * contrast).astype(np.float32)


@lru_cache(maxsize=4096)
def _marker(size: int, y: int, x: int) -> np.ndarray:
    """A filled circle, smoothed like the strokes, [size, size]."""
    circle = disc(SETTINGS[size].marker_radius * ANTIALIAS)
    reach = len(circle) // 2
    canvas = np.zeros((size * ANTIALIAS + 2 * reach, size * ANTIALIAS + 2 * reach), dtype=np.uint8)
    canvas[y * ANTIALIAS :, x * ANTIALIAS :][: len(circle), : len(circle)] = FULL * circle
    return resized(np.ascontiguousarray(canvas[reach:-reach, reach:-reach]), size)


def _full_range(pictures: np.ndarray) -> np.ndarray:
    """The darkest pixel of each picture becomes 0, the lightest 255."""
    low = pictures.min(axis=(1, 2), keepdims=True)
    high = pictures.max(axis=(1, 2), keepdims=True)
    return ((pictures - low) * (FULL / (high - low)) + 0.5).astype(np.uint8)

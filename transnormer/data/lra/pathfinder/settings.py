"""How the Long-Range Arena's Pathfinder pictures are parametrised, for each of the sizes offered."""

from __future__ import annotations

from dataclasses import dataclass

from transnormer.errors import ConfigError

ANTIALIAS = 2  # everything is drawn this much larger and scaled down
PADDLE_TRIES, DISTRACTOR_TRIES = 3, 5  # draws of a paddle's direction; attempts at one distractor
LEAST_FREE = 0.01  # no distractor is begun where a smaller share of the picture is free


@dataclass(frozen=True)
class Settings:
    """Lengths are in pixels unless they count paddles; a paddle is one dash of a contour."""

    size: int
    seed_distance: int  # from the origin of one contour to that of the other; twice that is kept free along the border
    marker_radius: float
    paddle_length: int
    paddle_thickness: float
    paddle_margins: tuple[int, ...]  # free space around a paddle; one of them is drawn for each picture
    continuity: float  # how straight contours are; turns of more than 90 degrees / continuity never happen
    num_distractors: int
    contour_contrast: float
    distractor_contrast: float
    cohort: int  # pairs of contours tried at once: enough for numpy, few enough for some tens of megabytes
    padding: int = 1
    contour_length: int = 14  # paddles
    distractor_length: int = 4  # paddles


# The values that the builders of LRA's data sets state; what they leave out is the original generator's default.
SETTINGS = {
    32: Settings(32, 7, 1.5, 2, 0.5, (1,), 1.0, 5, 1.5, 2.0, cohort=1024),
    64: Settings(64, 12, 2.5, 5, 1.0, (1,), 1.8, 5, 0.8, 0.8, cohort=2048),
    128: Settings(128, 20, 3.0, 5, 1.5, (2, 3), 1.8, 8, 0.9, 0.9, cohort=512),
}


def settings_for(size: int) -> Settings:
    """The settings of a picture size; a ConfigError for any other."""
    if size not in SETTINGS:
        raise ConfigError(f"there is no Pathfinder of size {size}", f"sizes: {', '.join(map(str, SETTINGS))}")
    return SETTINGS[size]

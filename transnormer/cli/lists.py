"""Comma-separated lists on the command line."""

from __future__ import annotations

from collections.abc import Iterable

from transnormer.errors import ConfigError, did_you_mean

_SUFFIXES = {"k": 1024, "m": 1024**2}


def parse_lengths(text: str, option: str = "--lengths") -> list[int]:
    """'1k,2k,5000' -> [1024, 2048, 5000]; k is 1024, as the paper's sequence lengths are."""
    lengths = []
    for part in text.split(","):
        number, scale = part.strip().lower(), 1
        if number and number[-1] in _SUFFIXES:
            number, scale = number[:-1], _SUFFIXES[number[-1]]
        if not number.isdigit() or int(number) < 1:
            raise ConfigError(f"{option}: '{part}' is not a number above 0", f"write e.g. {option} 1k,2k,4k")
        lengths.append(int(number) * scale)
    return lengths


def choose_names(option: str, text: str | None, known: Iterable[str]) -> list[str]:
    """The known names of a comma-separated list, each once, or all of them."""
    names = list(known)
    chosen = names if text is None else [part.strip() for part in text.split(",")]
    for name in chosen:
        if name not in names:
            raise ConfigError(f"{option}: unknown '{name}'", did_you_mean(name, names))
    return list(dict.fromkeys(chosen))


def parse_seeds(text: str) -> list[int]:
    """The numbers of a comma-separated list."""
    for word in text.split(","):
        if not word.strip().isdecimal():
            raise ConfigError(
                f"--seeds: '{word.strip()}' is not a number", hint="write e.g. --seeds 42 or --seeds 1,2,3"
            )
    return list(dict.fromkeys(int(word) for word in text.split(",")))

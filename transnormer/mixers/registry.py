"""Mixers by name. A new attention is one new file in this folder whose class carries `@register("name")`."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from transnormer.errors import ConfigError, did_you_mean
from transnormer.mixers.contract import Mixer

_REGISTRY: dict[str, type[Mixer]] = {}
_COMMON_ARGUMENTS = ("self", "hidden_size", "num_heads", "causal", "max_length")


def register(name: str) -> Callable[[type[Mixer]], type[Mixer]]:
    """Class decorator: make a mixer known under `name`."""

    def add(cls: type[Mixer]) -> type[Mixer]:
        if name in _REGISTRY:
            raise ValueError(f"mixer '{name}' is registered twice: {_REGISTRY[name].__module__} and {cls.__module__}")
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return add


@functools.cache
def _discover() -> dict[str, type[Mixer]]:
    package = importlib.import_module("transnormer.mixers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return _REGISTRY


def list_mixers() -> list[str]:
    """The names of all mixers.

    >>> {"diag", "norm", "softmax"} <= set(tn.list_mixers())
    True
    """
    return sorted(_discover())


def mixers_with_matrix() -> list[str]:
    """The names of those that have an attention matrix to look at."""
    return [name for name in list_mixers() if not mixer_class(name).traits.no_matrix]


def mixer_class(name: str) -> type[Mixer]:
    """The class behind a name."""
    mixers = _discover()
    if name not in mixers:
        raise ConfigError(f"unknown mixer '{name}'", did_you_mean(name, mixers))
    return mixers[name]


def mixer_options(name: str) -> dict[str, Any]:
    """The options of a mixer beyond the common arguments, with their defaults."""
    parameters = inspect.signature(mixer_class(name).__init__).parameters
    return {key: p.default for key, p in parameters.items() if key not in _COMMON_ARGUMENTS}


def can_rotate(names: Iterable[str]) -> bool:
    """Whether any of these mixers can rotate queries and keys by their positions."""
    return any("position" in mixer_options(name) for name in names)


_LARGEST = 2**31  # of a whole number among the options: no size is anywhere near


def check_options(name: str, options: dict[str, Any]) -> None:
    """Raise for an option that the mixer does not have, and for a value that is not of the option's type."""
    known = mixer_options(name)
    hints = get_type_hints(mixer_class(name).__init__)
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"mixer '{name}' has no option '{option}'", did_you_mean(option, known))
        check_type(f"mixer '{name}': option '{option}'", value, hints[option])
        if isinstance(value, int) and value > _LARGEST:
            raise ConfigError(f"mixer '{name}': option '{option}' must be at most {_LARGEST:,}, got {value}")
        if option == "dropout":
            check_probability(f"mixer '{name}': option 'dropout'", value)


def check_type(name: str, value: Any, wanted: Any) -> None:
    """Raise for a value that, as a recipe or a saved config holds it, cannot be passed where `wanted` is annotated."""
    if not _fits(value, wanted):
        expected = getattr(wanted, "__name__", str(wanted)).replace("collections.abc.", "").replace("typing.", "")
        raise ConfigError(f"{name} must be {expected}, got {value!r}")


def check_probability(name: str, value: float) -> None:
    """Raise for a dropout that is not a share of the numbers, or that is all of them."""
    if not 0 <= value < 1:
        raise ConfigError(f"{name} must lie in [0, 1), got {value}")


def _fits(value: Any, wanted: Any) -> bool:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if arguments and origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin in (Sequence, list):
        return isinstance(value, list | tuple) and all(_fits(each, arguments[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _fits(key, arguments[0]) and _fits(each, arguments[1]) for key, each in value.items()
        )
    if wanted is Any:
        return True
    if wanted in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if wanted is float else origin or wanted)


def build_mixer(name: str, *, hidden_size: int, num_heads: int, causal: bool, max_length: int, **options: Any) -> Mixer:
    """Build a mixer by name; a name or option that does not exist is an error with the nearest one that does.

    The mixer takes x [B, T, hidden_size] and a mask [B, T], 1 = real token, and returns [B, T, hidden_size].

    >>> import torch
    >>> mixer = tn.build_mixer("performer", hidden_size=64, num_heads=4, causal=True, max_length=512)
    >>> mixer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """
    check_options(name, options)
    cls = mixer_class(name)
    return cls(hidden_size=hidden_size, num_heads=num_heads, causal=causal, max_length=max_length, **options)

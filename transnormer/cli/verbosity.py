"""`-q` and `-v`, which every command takes: how much is said beside the output itself."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

_said = 0  # below 0: the output and errors only; above: more than usual


def set_verbosity(said: int = 0) -> None:
    """Say as much as usual, less (below 0) or more (above)."""
    global _said
    _said = said


def is_quiet() -> bool:
    """Whether only the output itself, and errors, are wanted."""
    return _said < 0


def is_verbose() -> bool:
    """Whether more is wanted than usual: how long start-up took, who set each key, where an error came from."""
    return _said > 0


def _quieter(given: bool) -> None:
    if given:
        set_verbosity(-1)


def _louder(given: bool) -> None:
    if given:
        set_verbosity(1)


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_quieter, help="No progress and no notes, only the outcome.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", callback=_louder, help="Who set each key, and where an error came from.")
]


def spoken(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the two options, which it need not know of."""

    @functools.wraps(verb)
    def with_options(*arguments: Any, quiet: bool = False, verbose: bool = False, **options: Any) -> None:
        verb(*arguments, **options)

    hints = get_type_hints(verb, include_extras=True)
    for option in itertools.chain.from_iterable(getattr(hint, "__metadata__", ()) for hint in hints.values()):
        option.readable = False  # typer would refuse in its own words what whoever reads the file says better
    own = [each.replace(annotation=hints[each.name]) for each in inspect.signature(verb).parameters.values()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in (("quiet", Quiet), ("verbose", Verbose))
    ]
    with_options.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    with_options.__annotations__ = {**hints, "quiet": Quiet, "verbose": Verbose}
    return with_options

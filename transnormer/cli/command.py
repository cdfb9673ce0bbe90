"""How commands show their options: a flag has no type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer.core


def _without_types(params: Iterable[Any]) -> None:
    """typer writes <bool> behind each flag, as if a value could be given."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.display_type_rich = _nothing


def _nothing(ctx: Any) -> None:
    return None


class Command(typer.core.TyperCommand):
    """A verb."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        _without_types(params)
        return params


class Group(typer.core.TyperGroup):
    """A group of verbs, or the whole command."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        _without_types(params)
        return params

"""Triton's interpreter without what it does again at every call of a device function."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def patch_the_language_once() -> None:
    """Look through Triton's language for functions to replace only where they have not been replaced already.

    A kernel's launch replaces them and puts them back. Every call inside it would search all of the language again, and
    find nothing: a third of the time.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch: Callable[[Any], Any] = interpreter._patch_lang

    @cache
    def languages(function: Any) -> list[ModuleType]:
        return [value for value in function.__globals__.values() if isinstance(value, ModuleType) and value in known]

    def patch_where_needed(function: Any) -> Any:
        needed = any(tl.core.is_builtin(language.load) for language in languages(function))
        return patch(function) if needed else interpreter._LangPatchScope()

    known = (tl, tl.core)
    interpreter._patch_lang = patch_where_needed


if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
    patch_the_language_once()

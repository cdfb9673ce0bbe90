"""Examples in docstrings, as blocks of code: Markdown would read >>> as quotations, one in the other."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_EXAMPLE = re.compile(r"^>>> .+(?:\n.+)*", re.MULTILINE)  # to the next empty line


class DoctestBlocks(Extension):
    """Put a fence around each example."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """When griffe has read an object of the source."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)

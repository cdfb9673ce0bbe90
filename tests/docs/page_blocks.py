"""Code blocks in pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks_in(text: str) -> list[tuple[str, str]]:
    """Language and code of each block that names a language."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)

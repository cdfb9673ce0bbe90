"""Tables of Markdown pages that are generated from the files in results/, each between two markers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def read_record(path: Path) -> dict[str, Any] | None:
    """A record of a benchmark; None where it was not made."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def replaced(page: str, name: str, content: str) -> str:
    """The page with everything between the markers of that name replaced."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{content}\n{end}", page, flags=re.DOTALL)

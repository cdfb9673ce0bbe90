"""A store of either kind, for whoever does not know which one it is."""

from __future__ import annotations

import json
from pathlib import Path

from transnormer.data.example_manifest import ExampleManifest
from transnormer.data.examples import ExampleStore
from transnormer.data.manifest import FILE_NAME, LARGEST
from transnormer.data.store import TokenStore
from transnormer.files import require_small

Store = TokenStore | ExampleStore


def open_store(path: str | Path) -> Store:
    """The token store or the example store at `path`; a DataError says what is wrong with it."""
    require_small(Path(path) / FILE_NAME, largest=LARGEST)
    try:
        content = json.loads((Path(path) / FILE_NAME).read_bytes())
    except (OSError, ValueError):
        content = None  # opening it says what is wrong
    is_examples = isinstance(content, dict) and content.get("format") == ExampleManifest.model_fields["format"].default
    return ExampleStore.open(path) if is_examples else TokenStore.open(path)

"""A tiny token store for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import tiny_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_store(tmp_path_factory.mktemp("store"))

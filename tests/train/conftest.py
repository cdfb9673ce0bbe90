"""One tiny token store for all tests of this folder, and the undisturbed run that others are compared with."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_run import tiny_config, tiny_store

from transnormer.train.loop import train


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="session")
def undisturbed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    train(tiny_config(store), run, show=False)
    return run

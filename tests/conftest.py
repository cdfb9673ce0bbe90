"""Settings for the whole suite: one thread per test process, no clocks, and uninitialised memory that shows itself."""

from __future__ import annotations

import os

# Several test processes share the machine; results must not depend on how many threads each one gets.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# How long an example takes says something about who else uses the machine, not about the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def lra_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """lra_store("lra/text") -> a tiny store, made once."""
    from lra_files import SOURCES

    from transnormer.data.lra.prepare import prepare

    made: dict[str, Path] = {}

    def find(task: str) -> Path:
        if task not in made:
            folder = tmp_path_factory.mktemp("lra")
            made[task] = prepare(task, folder / "store", source=SOURCES[task](folder / "source"))
        return made[task]

    return find


@pytest.fixture
def poisoned_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty gives NaN, so that a read of memory nobody wrote reaches the result."""

    def poison(allocate):
        def allocate_poisoned(*args, **kwargs):
            tensor = allocate(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return allocate_poisoned

    # torch.device contexts remember the factory functions they redirect from their first use: not the poisoned ones.
    with torch.device("cpu"):
        torch.zeros(1)
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poison(getattr(torch, name)))

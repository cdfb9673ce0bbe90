"""What the tests of the five tasks' readers share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from transnormer.data.examples import ExampleStore
from transnormer.data.lra.prepare import prepare


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., ExampleStore]:
    """prepared("lra/text", source=...) -> the verified store, in a new place every time."""
    count = iter(range(100))

    def make(task: str, **options: object) -> ExampleStore:
        store = ExampleStore.open(prepare(task, tmp_path / f"store-{next(count)}", **{"processes": 1, **options}))
        store.verify()
        return store

    return make

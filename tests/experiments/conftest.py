"""Tiny stores, and jobs that are real processes without the imports of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from lra_files import write_npz
from reproduce_case import ReproduceCase

from transnormer.data.lra.prepare import prepare
from transnormer.experiments import job


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with stores of lra/text, whose reviews are short, and of lra/image."""
    folder = tmp_path_factory.mktemp("stores")
    source = folder / "source"
    source.mkdir()
    for part in ("train", "test"):
        rows = [f"{number % 2}\t{'good' if number % 2 else 'bad'} film number {number}" for number in range(40)]
        (source / f"{part}.tsv").write_text("\n".join(rows))
    prepare("lra/text", folder / "data" / "text", source=source)
    prepare("lra/image", folder / "data" / "image", source=write_npz(folder / "images.npz"))
    return folder / "data"


@pytest.fixture
def case(
    tmp_path: Path,
    stores: Path,
    fork_server: str,
    forked_command: tuple[str, ...],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> ReproduceCase:
    monkeypatch.setattr(job, "PROGRAM", forked_command)
    return ReproduceCase(tmp_path, stores, fork_server, capfd.readouterr)

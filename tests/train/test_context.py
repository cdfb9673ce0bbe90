"""What `train.context_parallel` cannot share is said before data are looked for; unused, the key is not dumped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_run import tiny_config

from transnormer.config.load import dump_config
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError
from transnormer.train.context import require_pieces
from transnormer.train.loop import rehearse, train

BLOCKS_OF_8 = {"diag": {"block_size": 8}}


def sharing(folder: Path, pieces: int, **changes: Any) -> RunConfig:
    """A tiny run whose store does not exist."""
    return tiny_config(folder / "none", **{"train__context_parallel": pieces, **changes})


@pytest.mark.parametrize(
    ("length", "pieces", "options", "mixers"),
    [
        (128, 2, {}, None),
        (32, 4, BLOCKS_OF_8, None),
        (24, 4, {}, ["norm", "norm"]),  # without blocks any equal pieces will do
        (7, 1, {}, ["softmax", "diag"]),
    ],
)
def test_pieces_are_whole_blocks(
    tmp_path: Path, length: int, pieces: int, options: dict[str, Any], mixers: list[str] | None
) -> None:
    config = sharing(tmp_path, pieces, data__sequence_length=length)
    require_pieces(
        config.model_copy(
            update={"model": config.model.model_copy(update={"mixer_options": options, "mixers": mixers})}
        )
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__mixers": ["diag", "softmax"]}, "=2: softmax cannot share a sequence .*these mixers can: diag, norm"),
        ({"model__mixers": ["norm", "parallel"]}, "=2: parallel cannot share a sequence between processes"),
        ({"data__sequence_length": 12}, "=2: 12 tokens are 1 blocks of 8, fewer than the processes .*at least 16"),
        ({"data__sequence_length": 40}, r"sequence_length \(40\) is not a multiple of 2 blocks of 8 .*set it to 32"),
        ({"task": "recall/mqar", "data": {}}, "=2: recall/mqar cannot share its sequences"),
        ({}, r"train.context_parallel=2 does not divide the number of processes \(1\) .*torchrun --nproc_per_node 2"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_what_cannot_be_shared(tmp_path: Path, changes: dict[str, Any], message: str, dry: bool) -> None:
    config = sharing(tmp_path, 2, model__mixer_options=BLOCKS_OF_8, **changes)
    with pytest.raises(ConfigError, match=message):
        rehearse(config, tmp_path / "run") if dry else train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_shares_nothing_has_no_such_key(tmp_path: Path) -> None:
    assert "context_parallel" not in dump_config(sharing(tmp_path, 1))
    assert "context_parallel: 2" in dump_config(sharing(tmp_path, 2))

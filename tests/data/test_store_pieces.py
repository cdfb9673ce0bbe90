"""A store in pieces: together again bit for bit, none above its size, and damage named file by file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from token_store import new_store

from transnormer.cli.data_pieces import bytes_in
from transnormer.data.manifest import PIECES_FILE
from transnormer.data.store import TokenStore
from transnormer.data.store_pieces import check_pieces, join_pieces, split_store
from transnormer.data.tokenizers import byte_tokenizer
from transnormer.errors import ConfigError, DataError

SIZE = 10_000


def everything(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise, which cannot be compressed, and zeros, which can."""
    path = tmp_path_factory.mktemp("pieces") / "store"
    noise = np.random.default_rng(0).integers(0, 2**16, 21_000)
    with new_store(path, vocab_size=2**16, shard_tokens=18_000, meta={"corpus": "noise"}) as writer:
        writer.append("train", noise, 100, 10)
        writer.append("valid", np.zeros(30_000, dtype=np.int64), 7, 1)
    return path


@pytest.mark.parametrize("compress", [False, True])
def test_together_again_it_is_the_store(store: Path, tmp_path: Path, compress: bool):
    count = split_store(store, tmp_path / "pieces", SIZE, compress)
    sizes = [path.stat().st_size for path in (tmp_path / "pieces").glob("piece-*")]
    assert len(sizes) == count > 5
    assert max(sizes) <= SIZE
    assert check_pieces(tmp_path / "pieces") == count
    join_pieces(tmp_path / "pieces", tmp_path / "joined")
    assert everything(tmp_path / "joined") == everything(store)
    TokenStore.open(tmp_path / "joined").verify()
    if compress:
        assert sum(sizes) < 0.7 * sum(map(len, everything(store).values()))


def test_a_store_of_examples_and_one_with_a_tokenizer(lra_store: Callable[[str], Path], tmp_path: Path):
    with new_store(tmp_path / "text", tokenizer=byte_tokenizer()) as writer:
        writer.append("train", np.arange(200))
    for number, store in enumerate((lra_store("lra/text"), tmp_path / "text")):
        split_store(store, tmp_path / f"pieces-{number}", SIZE)
        join_pieces(tmp_path / f"pieces-{number}", tmp_path / f"joined-{number}")
        assert everything(tmp_path / f"joined-{number}") == everything(store)


def test_all_damaged_pieces_are_named_and_nothing_is_joined(store: Path, tmp_path: Path):
    pieces = tmp_path / "pieces"
    split_store(store, pieces, SIZE)
    flipped, cut, lost = (pieces / f"piece-0000{number}" for number in (2, 4, 6))
    content = bytearray(flipped.read_bytes())
    content[5] ^= 1
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-1])
    lost.unlink()
    for work in (lambda: check_pieces(pieces), lambda: join_pieces(pieces, tmp_path / "joined")):
        with pytest.raises(DataError, match="3 of 13 pieces are damaged") as caught:
            work()
        assert "piece-00002 (another sha256" in caught.value.message
        assert "piece-00004 (5,999 bytes, not 6,000)" in caught.value.message
        assert "piece-00006 (missing)" in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["pieces"]


def test_a_damaged_store_is_not_split_and_all_its_damage_is_named(store: Path, tmp_path: Path):
    shutil.copytree(store, tmp_path / "copy")
    for name in ("train-00001.bin", "valid-00000.bin"):
        content = bytearray((tmp_path / "copy" / name).read_bytes())
        content[0] ^= 1
        (tmp_path / "copy" / name).write_bytes(content)
    with pytest.raises(DataError, match=r"train-00001\.bin was altered.*valid-00000\.bin was altered"):
        split_store(tmp_path / "copy", tmp_path / "pieces", SIZE)
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_the_list_of_pieces_is_believed_only_as_far_as_it_goes(store: Path, tmp_path: Path):
    pieces = tmp_path / "pieces"
    split_store(store, pieces, SIZE)
    listing = (pieces / PIECES_FILE).read_text()
    for old, new, message in (
        ('"file":"manifest.json"', '"file":"../manifest.json"', "must be a path inside the store"),
        (TokenStore.open(store).digest, "0" * 64, "pieces of another store"),
        ('"version":1', '"version":2', "version"),
    ):
        compact = listing.replace(": ", ":")
        assert old in compact
        (pieces / PIECES_FILE).write_text(compact.replace(old, new))
        with pytest.raises(DataError, match=message):
            join_pieces(pieces, tmp_path / "joined")
    (pieces / PIECES_FILE).unlink()
    with pytest.raises(DataError, match=r"it has no pieces\.json"):
        check_pieces(pieces)
    assert [path.name for path in tmp_path.iterdir()] == ["pieces"]


def test_pieces_are_no_store_and_say_how_to_become_one(store: Path, tmp_path: Path):
    split_store(store, tmp_path / "pieces", SIZE)
    with pytest.raises(DataError, match="data join"):
        TokenStore.open(tmp_path / "pieces")
    with pytest.raises(ConfigError, match="too small"):
        split_store(store, tmp_path / "more", 100)


@pytest.mark.parametrize(
    ("text", "size"), [("50MB", 50_000_000), ("1.5 GiB", 3 * 2**29), ("64kib", 2**16), ("12345", 12_345)]
)
def test_sizes(text: str, size: int):
    assert bytes_in(text) == size


@pytest.mark.parametrize("text", ["", "fifty", "50 XB", "-1MB"])
def test_what_is_no_size(text: str):
    with pytest.raises(ConfigError, match="is no size"):
        bytes_in(text)

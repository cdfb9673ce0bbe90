"""`data verify` says where in a file a byte was altered, and the sums it knows by are no part of a store's identity."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_store import new_store

from transnormer.data.block_sums import BLOCK, BlockSums, place_of, sums_of
from transnormer.data.manifest import FILE_NAME
from transnormer.data.store import TokenStore
from transnormer.errors import DataError

TOKENS = 5 * BLOCK  # of two bytes each: two shards of three and two files' worth of blocks


@pytest.fixture
def store(tmp_path: Path) -> Path:
    ids = np.random.default_rng(0).integers(0, 1000, TOKENS)
    with new_store(tmp_path / "store", vocab_size=1000, shard_tokens=3 * BLOCK) as writer:
        for part in np.array_split(ids, 7):
            writer.append("train", part)
    return tmp_path / "store"


@pytest.mark.reliability("R10")
@pytest.mark.parametrize("name", ["train-00000.bin", "train-00001.bin"])
def test_verify_names_the_block(store: Path, name: str) -> None:
    path, generator = store / name, np.random.default_rng(1)
    content = path.read_bytes()
    for at in [0, BLOCK - 1, BLOCK, len(content) - 1, *generator.integers(0, len(content), 16)]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(DataError) as caught:
            TokenStore.open(store).verify()
        found = re.search(rf"{name} was altered in bytes ([\d,]+) to ([\d,]+):", caught.value.message)
        assert found, caught.value.message
        first, last = (int(number.replace(",", "")) for number in found.groups())
        assert first <= at <= last < first + BLOCK
    path.write_bytes(content)
    TokenStore.open(store).verify()


def manifest_of(store: Path) -> dict:
    return json.loads((store / FILE_NAME).read_text())


def test_a_store_without_sums_is_the_same_store(store: Path) -> None:
    with_sums, content = TokenStore.open(store), manifest_of(store)
    for shard in content["splits"]["train"]["shards"]:
        assert len(shard.pop("crc32")) in (8 * 2 * 3, 8 * 2 * 2)
    (store / FILE_NAME).write_text(json.dumps(content))
    without = TokenStore.open(store)
    without.verify()
    assert without.digest == with_sums.digest
    path = store / "train-00000.bin"
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(DataError, match=r"train-00000.bin was altered: its sha256"):
        without.verify()


def test_edited_sums_are_found(store: Path) -> None:
    content = manifest_of(store)
    shard = content["splits"]["train"]["shards"][1]
    shard["crc32"] = shard["crc32"][::-1]
    (store / FILE_NAME).write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"manifest.json was edited: the crc32 of train-00001.bin"):
        TokenStore.open(store).verify()


@given(st.binary(max_size=3 * BLOCK), st.lists(st.integers(0, 3 * BLOCK), max_size=5))
def test_sums_do_not_depend_on_the_parts(content: bytes, cuts: list[int]) -> None:
    whole, parts = BlockSums(), BlockSums()
    whole.update(content)
    at = 0
    for cut in [*sorted(cuts), len(content)]:
        parts.update(content[at : max(at, cut)])
        at = max(at, cut)
    assert parts.hexdigest() == whole.hexdigest()
    assert len(whole.hexdigest()) == 8 * -(-len(content) // BLOCK)


def test_sums_of_a_file_and_places_in_words(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * BLOCK + 1))
    _, zeros = sums_of(path)
    path.write_bytes(b"\1" + bytes(2 * BLOCK - 1) + b"\1")
    _, changed = sums_of(path)
    assert place_of(changed, zeros) == " in bytes 0 to 65,535 and elsewhere, 2 blocks in all"
    assert place_of(zeros, zeros) == ""


def test_a_file_that_may_not_be_read_is_not_called_damaged(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reader may not see need not be thrown away."""

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("transnormer.data.manifest.sums_of", refuse)
    with pytest.raises(DataError, match=r"cannot read .*: Permission denied") as refused:
        TokenStore.open(store).verify()
    assert "remove" not in str(refused.value.hint)

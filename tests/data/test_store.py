"""The token store: what is written is read, and any damage is found and named."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_store import new_store

from transnormer.data import manifest as schema
from transnormer.data.store import SplitInfo, TokenStore
from transnormer.data.tokenizers import byte_tokenizer
from transnormer.errors import DataError


def write(path: Path, ids: np.ndarray, vocab_size: int = 259, shard_tokens: int = 100) -> TokenStore:
    with new_store(path, vocab_size=vocab_size, shard_tokens=shard_tokens) as writer:
        for part in np.array_split(ids, 7):
            writer.append("train", part, num_bytes=len(part), num_words=1)
        writer.append("valid", ids[:10], num_bytes=10, num_words=2)
    return TokenStore.open(path)


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 259, size=350)


@pytest.fixture
def store(tmp_path: Path, ids: np.ndarray) -> TokenStore:
    return write(tmp_path / "store", ids)


@given(start=st.integers(0, 350), length=st.integers(0, 350))
def test_reads_across_shards(tmp_path_factory: pytest.TempPathFactory, start: int, length: int):
    path = tmp_path_factory.getbasetemp() / "shared-store"
    expected = np.random.default_rng(1).integers(0, 259, size=350)
    split = (TokenStore.open(path) if path.exists() else write(path, expected)).split("train")
    stop = min(350, start + length)
    read = split.read(start, stop)
    assert read.dtype == np.int64
    assert np.array_equal(read, expected[start:stop])


def test_counts_and_shards(store: TokenStore):
    assert store.splits == {"train": SplitInfo(350, 350, 7), "valid": SplitInfo(10, 10, 2)}
    assert sorted(path.name for path in store.path.iterdir()) == [
        "manifest.json", *(f"train-{i:05d}.bin" for i in range(4)), "valid-00000.bin",
    ]  # fmt: skip
    assert store.tokenizer_path is None
    store.verify()


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "<u2"), (65_537, "<u4"), (267_744, "<u4")])
def test_shards_are_plain_little_endian_arrays(tmp_path: Path, vocab_size: int, dtype: str):
    ids = np.array([0, 1, vocab_size - 1] * 20)
    store = write(tmp_path / "store", ids, vocab_size, shard_tokens=2**27)
    assert np.array_equal(np.fromfile(store.path / "train-00000.bin", dtype=dtype), ids)
    assert np.array_equal(store.split("train").read(0, 60), ids)


def test_a_shard_that_is_exactly_full_leaves_no_empty_one(tmp_path: Path):
    store = write(tmp_path / "store", np.arange(200), shard_tokens=100)
    assert len(list(store.path.glob("train-*.bin"))) == 2


def test_tokenizer_travels_with_the_store(tmp_path: Path):
    with new_store(tmp_path / "store", tokenizer=byte_tokenizer(), meta={"corpus": "x"}) as writer:
        writer.append("train", np.arange(259))
    store = TokenStore.open(tmp_path / "store")
    store.verify()
    assert store.vocab_size == 259
    assert store.meta == {"corpus": "x"}
    assert store.tokenizer_path == tmp_path / "store" / "tokenizer"
    assert (store.tokenizer_path / "tokenizer.json").is_file()


def test_what_a_manifest_says_of_the_tokenizer_is_an_object(tmp_path: Path):
    with new_store(tmp_path / "store", vocab_size=9, meta={"tokenizer": 3}) as writer:
        writer.append("train", np.arange(9))
    with pytest.raises(DataError, match=r"meta\.tokenizer is no object but 3"):
        TokenStore.open(tmp_path / "store")


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path):
    for bad in ([1, 9], [-1, 2]):
        with (
            pytest.raises(DataError, match="outside the vocabulary of 9"),
            new_store(tmp_path / "store", vocab_size=9) as writer,
        ):
            writer.append("train", np.array(bad))


# Damage


@pytest.mark.parametrize("name", ["train-00002.bin", "valid-00000.bin"])
def test_a_flipped_bit_is_found_by_verify(store: TokenStore, name: str):
    data = bytearray((store.path / name).read_bytes())
    data[11] ^= 1
    (store.path / name).write_bytes(data)
    with pytest.raises(DataError, match=rf"{name} was altered"):
        TokenStore.open(store.path).verify()


@pytest.mark.reliability("R10")
@pytest.mark.parametrize("size", [0, 1, 199])
def test_a_truncated_shard_is_found_on_opening(store: TokenStore, size: int):
    os.truncate(store.path / "train-00001.bin", size)
    with pytest.raises(DataError, match=rf"train-00001.bin has {size} bytes, not 200"):
        TokenStore.open(store.path)


@pytest.mark.reliability("R10")
def test_a_missing_shard_is_found_on_opening(store: TokenStore):
    (store.path / "train-00001.bin").unlink()
    with pytest.raises(DataError, match=r"train-00001.bin is missing"):
        TokenStore.open(store.path)


@pytest.mark.reliability("R10")
def test_swapped_shards_are_found_by_verify(store: TokenStore):
    first, second = store.path / "train-00000.bin", store.path / "train-00001.bin"
    swapped = second.read_bytes(), first.read_bytes()
    first.write_bytes(swapped[0])
    second.write_bytes(swapped[1])
    with pytest.raises(DataError, match=r"train-00000.bin was altered"):
        TokenStore.open(store.path).verify()


@pytest.mark.reliability("R10")
def test_an_id_outside_the_vocabulary_is_found_on_reading(store: TokenStore):
    shard = np.memmap(store.path / "train-00002.bin", dtype="<u2", mode="r+")
    shard[37] = 300
    shard.flush()
    split = TokenStore.open(store.path).split("train")
    assert len(split.read(0, 237)) == 237
    with pytest.raises(DataError, match=r"train-00002.bin: token 37 is 300, outside the vocabulary of 259"):
        split.read(100, 350)


def edit(store: TokenStore, change, reseal: bool) -> None:
    """Alters the manifest; `reseal` also repairs its digest, as a careful editor would."""
    path = store.path / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    if reseal:
        path.write_text(schema.to_json(schema.Manifest.model_validate_json(path.read_text())))


@pytest.mark.reliability("R10")
def test_an_edited_manifest_is_found_on_opening(store: TokenStore):
    edit(store, lambda m: m.update(vocab_size=1000), reseal=False)
    with pytest.raises(DataError, match=r"manifest.json was edited"):
        TokenStore.open(store.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=2), "version"),
        (lambda m: m.update(dtype="float32"), "dtype"),
        (lambda m: m.update(vocab_size="many"), "vocab_size"),
        (lambda m: m.update(surprise=1), "surprise"),
        (lambda m: m.pop("splits"), "splits"),
        (lambda m: m["splits"]["train"]["shards"][0].update(file="../../etc/passwd"), "inside the store"),
        (lambda m: m["splits"]["train"]["shards"][0].update(tokens=-1), "tokens"),
    ],
)
def test_a_manifest_of_another_form_is_named_by_key(store: TokenStore, change, message: str):
    edit(store, change, reseal=False)
    with pytest.raises(DataError, match=message):
        TokenStore.open(store.path)


def test_counts_that_do_not_add_up(store: TokenStore):
    edit(store, lambda m: m["splits"]["train"].update(tokens=351), reseal=True)
    with pytest.raises(DataError, match=r"splits\.train\.tokens is not the sum"):
        TokenStore.open(store.path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "\0\xff"])
def test_a_manifest_that_is_not_json(store: TokenStore, content: str):
    (store.path / "manifest.json").write_text(content)
    with pytest.raises(DataError, match=r"manifest.json"):
        TokenStore.open(store.path)


def test_what_is_not_a_store(tmp_path: Path):
    missing, other = "does not exist", "is not a token store"
    for path, told in ((tmp_path, other), (tmp_path / "absent", missing), (Path(__file__), other)):
        with pytest.raises(DataError, match=told) as caught:
            TokenStore.open(path)
        assert "data prepare" in str(caught.value)
        assert caught.value.exit_code == 5


def test_an_unknown_split_names_the_known_ones(store: TokenStore):
    with pytest.raises(DataError, match=r"no 'validation' split.*did you mean 'valid'"):
        store.split("validation")


def test_reading_past_the_end_is_an_index_error(store: TokenStore):
    with pytest.raises(IndexError):
        store.split("train").read(340, 351)

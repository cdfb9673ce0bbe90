"""Image: every format gives the same grey images, pickles run no code, and every fault is named."""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lra_files import cifar_pickle, colours, pack, write_cifar_binary, write_cifar_pickles, write_npz

from transnormer.data.examples import ExampleStore
from transnormer.data.lra.image import _python_batch, to_grey
from transnormer.errors import DataError


def images(store: ExampleStore, *names: str) -> list[tuple[bytes, int]]:
    splits = [store.split(name) for name in names]
    return sorted((bytes(s.sequence(number)), int(s.labels[number])) for s in splits for number in range(len(s)))


def sources(folder: Path) -> dict[str, Path]:
    """The same images in every format."""
    rgb, labels = colours()
    binary, python = write_cifar_binary(folder / "binary"), write_cifar_pickles(folder / "python")
    return {
        "the parent of the batches": binary,
        "binary batches": binary / "cifar-10-batches-bin",
        "their archive": pack(binary, folder / "cifar-10-binary.tar.gz"),
        "python batches": python / "cifar-10-batches-py",
        "their archive, too": pack(python, folder / "cifar-10-python.tar.gz"),
        "python 3's old protocol": write_cifar_pickles(folder / "old", protocol=2),
        "python 3's own protocol": write_cifar_pickles(folder / "python3", protocol=4),
        "npz in colour": write_npz(folder / "rgb.npz", x_train=rgb, y_train=labels[:, None], x_test=rgb, y_test=labels),
        "npz in grey": write_npz(
            folder / "grey.npz", x_train=to_grey(rgb), y_train=labels, x_test=to_grey(rgb), y_test=labels
        ),
    }


def test_every_format_gives_the_same_images(prepared: Callable, tmp_path: Path):
    rgb, labels = colours()
    expected = sorted((bytes(image.reshape(-1)), int(label)) for image, label in zip(to_grey(rgb), labels, strict=True))
    for name, source in sources(tmp_path).items():
        store = prepared("lra/image", source=source)
        assert {split: len(store.split(split)) for split in store.splits} == {"train": 18, "valid": 2, "test": 20}
        assert images(store, "train", "valid") == images(store, "test") == expected, name
        assert (store.vocab_size, store.num_labels, store.max_length) == (256, 10, 1024)


def test_rows_come_one_after_the_other(prepared: Callable, tmp_path: Path):
    picture = np.zeros((1, 32, 32), dtype=np.uint8)
    picture[0, 2, 5] = 200
    store = prepared("lra/image", source=write_npz(tmp_path / "one.npz", x_test=picture, y_test=np.array([3])))
    assert np.flatnonzero(store.split("test").sequence(0)).tolist() == [2 * 32 + 5]


def test_grey_is_the_stated_formula():
    rgb = np.array([[255, 255, 255], [0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30]], dtype=np.uint8)
    exact = (rgb @ np.array([0.2989, 0.5870, 0.1140])) / 255 * 255.5
    assert to_grey(rgb).tolist() == [int(value) for value in exact] == [255, 0, 76, 149, 29, 18]
    every = np.stack(np.meshgrid(*[np.arange(0, 256, 5)] * 3), axis=-1).astype(np.uint8)
    exact = np.minimum((every @ np.array([0.2989, 0.5870, 0.1140])) / 255 * 255.5, 255)
    # float32 decides otherwise only where the value is an integer within its precision
    assert np.abs(to_grey(every) - np.floor(exact)).max() <= 1
    assert (to_grey(every) != np.floor(exact)).mean() < 1e-3


class Evil:
    def __reduce__(self):
        return (os.system, ("echo evil > evil.txt",))


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({b"data": Evil(), b"labels": [1]}),
        pickle.dumps(Evil(), protocol=0),
        b"cos\nsystem\n(S'echo evil > evil.txt'\ntR.",
        b"cnumpy\nload\n.",
        b"cbuiltins\neval\n(S'1'\ntR.",
        pickle.dumps(np.array([Evil()], dtype=object)),
    ],
)
def test_a_pickle_runs_no_code(prepared: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes):
    monkeypatch.chdir(tmp_path)
    source = write_cifar_pickles(tmp_path / "bad")
    (source / "cifar-10-batches-py" / "data_batch_3").write_bytes(content)
    with pytest.raises(
        DataError, match=r"data_batch_3: not a CIFAR-10 batch: it asks for .*, which no official batch does"
    ):
        prepared("lra/image", source=source)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


@given(st.data())
def test_any_other_bytes_are_no_batch(data: st.DataObject):
    rgb, labels = colours(2)
    content = bytearray(cifar_pickle(rgb, labels))
    content[data.draw(st.integers(0, 200))] ^= data.draw(st.integers(1, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    try:
        pixels, found = _python_batch(bytes(content), "batch")
    except DataError:
        return
    assert (pixels.dtype, pixels.shape[1:]) == (np.uint8, (32, 32))
    assert len(found) == len(pixels)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"labels": [1]}, "not a CIFAR-10 batch"),
        ([1, 2], "not a CIFAR-10 batch"),
        ({b"data": np.zeros((2, 3071), np.uint8), b"labels": [1, 2]}, r"not a .*6,142 bytes in the shape \[2, 3071\]"),
        ({b"data": np.zeros((2, 3072), np.int64), b"labels": [1, 2]}, "not a .*no plain bytes but 'i8'"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, "the label of image 1 is 10"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, r"2 images, but labels of shape \[1\]"),
    ],
)
def test_a_bad_batch(prepared: Callable, tmp_path: Path, batch: object, message: str):
    source = write_cifar_pickles(tmp_path / "bad")
    (source / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(batch))
    with pytest.raises(DataError, match=f"test_batch: {message}"):
        prepared("lra/image", source=source)


def test_a_bad_binary_batch(prepared: Callable, tmp_path: Path):
    source = write_cifar_binary(tmp_path / "bad")
    path = source / "cifar-10-batches-bin" / "data_batch_2.bin"
    content = bytearray(path.read_bytes())
    content[3073] = 11
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data_batch_2.bin: the label of image 1 is 11"):
        prepared("lra/image", source=source)
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=r"data_batch_2.bin: 12,291 bytes is no multiple of 3,073"):
        prepared("lra/image", source=source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((20, 28, 28), np.uint8)}, "x_train: images of 28 x 28"),
        ({"x_train": np.zeros((20, 3, 32, 32), np.uint8)}, "x_train: images of 3 x 32 x 32"),
        ({"x_train": np.zeros((20, 32, 32), np.float32)}, "x_train: the pixels are float32"),
        ({"y_test": np.full(8, 10)}, "x_test: the label of image 0 is 10"),
        ({"y_test": np.arange(7)}, r"x_test: 8 images, but labels of shape \[7\]"),
        ({"y_train": np.array([{}] * 20)}, "Object arrays cannot be loaded"),
    ],
)
def test_a_bad_npz(prepared: Callable, tmp_path: Path, changes: dict, message: str):
    with pytest.raises(DataError, match=message):
        prepared("lra/image", source=write_npz(tmp_path / "bad.npz", **changes))
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npz"]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_a_truncated_npz_or_archive(prepared: Callable, tmp_path: Path, share: float):
    npz = write_npz(tmp_path / "images.npz")
    archive = pack(write_cifar_binary(tmp_path / "binary"), tmp_path / "cifar-10-binary.tar.gz")
    for path in (npz, archive):
        os.truncate(path, int(share * path.stat().st_size))
        with pytest.raises(DataError, match=rf"{path.name} is truncated or"):
            prepared("lra/image", source=path)


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_an_archive_with_one_wrong_byte(prepared: Callable, tmp_path: Path, suffix: str):
    archive = pack(write_cifar_binary(tmp_path / "binary"), tmp_path / f"cifar-10-binary.tar.{suffix}")
    assert len(prepared("lra/image", source=archive).split("test")) == 20
    content = archive.read_bytes()
    for place in (len(content) // 2, -8, -1):  # of the pixels, and of the checksum behind them
        wrong = bytearray(content)
        wrong[place] ^= 255
        archive.write_bytes(wrong)
        with pytest.raises(DataError, match=rf"{archive.name} is truncated or damaged"):
            prepared("lra/image", source=archive)


# How a file is listed at the end of an npz: a mark, two versions, flags such as that for encryption, the compression.
LISTED = b"PK\1\2" + b"\x2d\3" + b"\x2d\0" + b"\0\0" + b"\0\0"


def an_array_alone(content: bytes) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (an_array_alone, "File is not a zip file"),
        (lambda content: content.replace(LISTED, LISTED[:-2] + b"\x63\0"), "compression"),
        (lambda content: content.replace(LISTED, LISTED[:-4] + b"\1\0\0\0"), "encrypted"),
        (lambda content: content.replace(b"{'descr'", b"{{descr'", 1), "x_train.npy does not fit its checksum"),
        # numpy takes the first half of these labels for all of them
        (lambda content: content.replace(b"<i8", b"<i4", 1), "y_train.npy does not fit its checksum"),
    ],
)
def test_a_damaged_npz(prepared: Callable, tmp_path: Path, damage: Callable[[bytes], bytes], message: str):
    count = 2_000
    changes = {"x_train": np.zeros((count, 32, 32), np.uint8), "y_train": np.arange(count) % 10}
    path = write_npz(tmp_path / "bad.npz", **changes)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"bad.npz is truncated or no npz file: .*{message}"):
        prepared("lra/image", source=path)


def test_an_npz_without_the_arrays(prepared: Callable, tmp_path: Path):
    buffer = io.BytesIO()
    np.savez(buffer, x_train=np.zeros((1, 32, 32), np.uint8))
    (tmp_path / "other.npz").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match=r"has no y_train, x_test, y_test"):
        prepared("lra/image", source=tmp_path / "other.npz")


def test_what_holds_no_images(prepared: Callable, tmp_path: Path):
    with pytest.raises(DataError, match="does not exist"):
        prepared("lra/image", source=tmp_path / "absent")
    with pytest.raises(DataError, match="has no train batch"):
        prepared("lra/image", source=tmp_path)
    source = write_cifar_binary(tmp_path / "half")
    (source / "cifar-10-batches-bin" / "test_batch.bin").unlink()
    with pytest.raises(DataError, match="has no test batch"):
        prepared("lra/image", source=source)


def test_the_real_images(real_data: Callable, prepared: Callable):
    store = prepared("lra/image", source=real_data("cifar10_gray.npz"))
    assert [len(store.split(name)) for name in ("train", "valid", "test")] == [45_000, 5_000, 10_000]
    assert np.bincount(store.split("test").labels).tolist() == [1_000] * 10
    assert "differs_from_published" not in store.meta

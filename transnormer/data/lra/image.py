"""Image: CIFAR-10 in grey, pixel by pixel, from the official batches (folder or archive) or from an npz file."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transnormer.data.example_source import Example, Part, Source, as_one_split, held_out, read_bytes
from transnormer.data.excerpts import sha256_of
from transnormer.data.lra.archives import is_archive, read_members
from transnormer.data.lra.spec import SPECS
from transnormer.errors import DataError

SIZE, NUM_CLASSES = 32, 10
HINT = SPECS["lra/image"].about_source
_BATCH = re.compile(r"(?:.*/)?(data_batch_[1-5]|test_batch)(\.bin)?")
_PARTS = ("train", "test")
_MOST_BYTES = 2**28  # all arrays of CIFAR-10 in colour are 184 MB
_RECORD = 1 + 3 * SIZE * SIZE  # label, then the red, green and blue planes

Images = tuple[np.ndarray, np.ndarray]  # [N, 32, 32] uint8, [N] labels


def open_image(source: str | Path, seed: int) -> Source:
    """The images of a source; a tenth of the training set becomes the validation set."""
    path = Path(source)
    if not path.exists():
        raise DataError(f"{path} does not exist", HINT)
    images, files = _read_npz(path) if path.suffix == ".npz" else _read_batches(path)
    counts = {name: len(images[name][1]) for name in _PARTS}
    train = Part(counts["train"], _reader(*images["train"]), held_out(counts["train"], seed, "valid"))
    test = Part(counts["test"], _reader(*images["test"]), as_one_split("test", counts["test"]))
    rule = f"valid is a tenth of the source's train set, drawn with seed {seed}; test is the source's"
    return Source({"train": train, "test": test}, rule, {"sources": files})


def to_grey(rgb: np.ndarray) -> np.ndarray:
    """uint8 [..., 3] to uint8 [...] as TensorFlow does: (0.2989 R + 0.5870 G + 0.1140 B) / 255, times 255.5, cut."""
    # Term by term, because a matrix product may add in another order on another machine.
    red, green, blue = (rgb[..., plane].astype(np.float32) * np.float32(1 / 255) for plane in range(3))
    grey = red * np.float32(0.2989) + green * np.float32(0.5870) + blue * np.float32(0.1140)
    return np.minimum(grey * np.float32(255.5), 255).astype(np.uint8)


def _reader(images: np.ndarray, labels: np.ndarray) -> Callable[[], Iterator[Example]]:
    return lambda: (((image.reshape(-1),), int(label)) for image, label in zip(images, labels, strict=True))


def _checked(images: np.ndarray, labels: np.ndarray, where: str) -> Images:
    """Grey images of the right form with their labels, or a DataError."""
    if images.dtype != np.uint8:
        raise DataError(f"{where}: the pixels are {images.dtype}", "pixels are uint8, 0 .. 255")
    if images.ndim not in (3, 4) or images.shape[1:] not in ((SIZE, SIZE), (SIZE, SIZE, 3)):
        shape = " x ".join(map(str, images.shape[1:]))
        raise DataError(f"{where}: images of {shape}", f"CIFAR-10 has {SIZE} x {SIZE}, grey or with 3 colours last")
    labels = labels.reshape(-1) if labels.shape in ((len(images),), (len(images), 1)) else labels
    if labels.shape != (len(images),) or not len(images):
        raise DataError(f"{where}: {len(images)} images, but labels of shape {list(labels.shape)}", "one label each")
    outside = np.flatnonzero(~np.isin(labels, np.arange(NUM_CLASSES)))
    if len(outside):
        first = int(outside[0])
        raise DataError(f"{where}: the label of image {first} is {labels[first]}", f"labels are 0 .. {NUM_CLASSES - 1}")
    return (to_grey(images) if images.ndim == 4 else images), labels.astype(np.int64)


def _read_npz(path: Path) -> tuple[dict[str, Images], dict[str, str]]:
    wanted = [key for name in _PARTS for key in (f"x_{name}", f"y_{name}")]
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > _MOST_BYTES:
                raise zipfile.BadZipFile(f"it unpacks to more than {_MOST_BYTES:,} bytes")
            # numpy does not read an array with a damaged header to its checksum.
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} does not fit its checksum")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in wanted if key in file.files}
    except Exception as problem:  # a damaged file may raise anything
        raise DataError(f"{path} is truncated or no npz file: {problem}", "download it again") from problem
    if missing := [key for key in wanted if key not in arrays]:
        raise DataError(f"{path} has no {', '.join(missing)}", HINT)
    images = {name: _checked(arrays[f"x_{name}"], arrays[f"y_{name}"], f"{path} x_{name}") for name in _PARTS}
    return images, {path.name: sha256_of(path)}


def _read_batches(path: Path) -> tuple[dict[str, Images], dict[str, str]]:
    if is_archive(path):
        files = list(read_members(path, lambda name: _BATCH.fullmatch(name) is not None))
        hashes = {path.name: sha256_of(path)}
    else:
        folders = (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin")
        found = [sorted(file for file in folder.glob("*_batch*") if _BATCH.fullmatch(file.name)) for folder in folders]
        chosen: list[Path] = next(filter(None, found), [])
        files = [(file.name, read_bytes(file)) for file in chosen]
        hashes = {file.name: sha256_of(file) for file in chosen}
    batches: dict[str, list[Images]] = {name: [] for name in _PARTS}
    for name, content in files:
        where = f"{path} {name}"
        batch = _binary_batch(content, where) if name.endswith(".bin") else _python_batch(content, where)
        batches["test" if "test_batch" in name else "train"].append(batch)
    for name, read in batches.items():
        if not read:
            raise DataError(f"{path} has no {name} batch", HINT)
    return {name: _joined(read) for name, read in batches.items()}, hashes


def _joined(batches: list[Images]) -> Images:
    images, labels = zip(*batches, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _binary_batch(content: bytes, where: str) -> Images:
    if not content or len(content) % _RECORD:
        raise DataError(f"{where}: {len(content):,} bytes is no multiple of {_RECORD:,}", "is the file complete?")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    return _checked(_planes_last(records[:, 1:]), records[:, 0], where)


def _python_batch(content: bytes, where: str) -> Images:
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
        pixels, labels = batch[b"data"].pixels(), _label_array(batch[b"labels"])
    except Exception as problem:  # a damaged pickle may raise anything
        raise DataError(f"{where}: not a CIFAR-10 batch: {problem}", "is the file complete?") from problem
    return _checked(_planes_last(pixels), labels, where)


def _label_array(labels: Any) -> np.ndarray:
    """A flat list as an array; a list of lists, of which a pickle need hold each but once, could be of any size."""
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("its labels are no list of numbers")
    return np.array(labels)


def _planes_last(pixels: np.ndarray) -> np.ndarray:
    """[N, 3072], colour planes one after the other -> [N, 32, 32, 3]."""
    return pixels.reshape(-1, 3, SIZE, SIZE).transpose(0, 2, 3, 1)


class _ArraysOnly(pickle.Unpickler):
    """The official batches are pickles, which can run any code; this one understands a numpy array and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        known = {
            ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy", "ndarray"): _PickledArray,
            ("numpy", "dtype"): _PickledType,
            ("_codecs", "encode"): _encode,  # how Python 3 writes bytes in old protocols
        }
        if (module, name) not in known:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no official batch does")
        return known[module, name]


class _PickledType:
    """Stands for numpy.dtype, of which a pickle could change the built-in ones in place."""

    def __init__(self, code: str | bytes, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like, of which a byte has none."""


class _PickledArray:
    """Stands for numpy.ndarray."""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, self.by_columns, self.content = state

    def pixels(self) -> np.ndarray:
        """The array, if it is one of images."""
        if self.dtype.code not in ("u1", b"u1"):
            raise ValueError(f"its pixels are no plain bytes but {self.dtype.code!r}")
        rows, columns = self.shape
        if columns != _RECORD - 1 or len(self.content) != rows * columns:
            raise ValueError(f"its pixels are {len(self.content):,} bytes in the shape {[rows, columns]}")
        return np.frombuffer(self.content, dtype=np.uint8).reshape(rows, columns, order="F" if self.by_columns else "C")


def _reconstruct(*_: Any) -> _PickledArray:
    return _PickledArray()


def _encode(text: str, encoding: str | bytes) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise ValueError(f"unexpected encoding {encoding!r}")
    return text.encode("latin1")

"""Small files that stand for gigabytes: refused within seconds and in little memory."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import resource
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from transnormer.config.init_folder import model_keys
from transnormer.data.glue.spec import spec_of
from transnormer.data.glue.tsv import read_tsv
from transnormer.data.lra.image import open_image
from transnormer.data.lra.listops.official import read_official_tsv
from transnormer.data.lra.pathfinder.official import read_official_folder
from transnormer.data.lra.text import open_text
from transnormer.data.open_store import open_store
from transnormer.data.tokenizers import load_tokenizer
from transnormer.errors import DataError
from transnormer.generate.load import architecture_of
from transnormer.models.loading import load_local_tokenizer
from transnormer.train.checkpoint import BrokenCheckpoint, verify

GIB = 2**30


def png(path: Path, side: int) -> None:
    """A gray PNG that says how large it is and ends after a row."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    content = zlib.compress(bytes(side + 1))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b""))


def pathfinder(folder: Path, write: Callable[[Path], None]) -> Callable[[], Any]:
    (folder / "imgs" / "0").mkdir(parents=True)
    (folder / "metadata").mkdir()
    (folder / "metadata" / "0.npy").write_text("imgs/0 sample_0.png 0 1 1.8 6 2 5 1.5 1 1\n")
    write(folder / "imgs" / "0" / "sample_0.png")
    return lambda: list(read_official_folder(folder))


def huge_png(folder: Path, side: int = 60_000) -> Callable[[], Any]:
    return pathfinder(folder, lambda path: png(path, side))


def large_png(folder: Path) -> Callable[[], Any]:
    return huge_png(folder, 9_000)  # below where Pillow itself refuses


def tiff_named_png(folder: Path) -> Callable[[], Any]:
    return pathfinder(folder, lambda path: Image.fromarray(np.zeros((32, 32), np.uint8)).save(path, "TIFF"))


def npz(folder: Path) -> Callable[[], Any]:
    path = folder / "cifar.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x_train.npy", "w") as member:
        header = io.BytesIO()
        shape = (GIB // 3072, 32, 32, 3)
        np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
        member.write(header.getvalue())
        for _ in range(400):
            member.write(bytes(2**20))
    return lambda: open_image(path, 0)


def archive(path: Path, members: dict[str, int], headers: dict[str, str] | None = None) -> None:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT, compresslevel=1) as file:
        for name, size in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.pax_headers = size, headers or {}
            file.addfile(member, _Zeros(size))


class _Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        data = bytes(min(size, self._left))
        self._left -= len(data)
        return data


def wanted_member(folder: Path) -> Callable[[], Any]:
    archive(folder / "cifar.tar.gz", {"cifar-10-batches-bin/data_batch_1.bin": 400 * 2**20})
    return lambda: open_image(folder / "cifar.tar.gz", 0)


def unwanted_member(folder: Path) -> Callable[[], Any]:
    archive(folder / "aclImdb.tar.gz", {"unused": 400 * 2**20})
    return lambda: open_text(folder / "aclImdb.tar.gz", 0)


def header_of_an_archive(folder: Path) -> Callable[[], Any]:
    archive(folder / "aclImdb.tar.gz", {"train/pos/0_1.txt": 1}, {"comment": "x" * 200 * 2**20})
    return lambda: open_text(folder / "aclImdb.tar.gz", 0)


def nested_labels(folder: Path) -> Callable[[], Any]:
    labels: list[Any] = [0] * 10
    for _ in range(8):
        labels = [labels] * 10
    batch = {b"data": np.zeros((10, 3072), np.uint8), b"labels": labels}
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return lambda: open_image(folder, 0)


def long_file(path: Path, head: bytes = b"") -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(3 * GIB)  # zeros, which take no room on the disk
    return path


def tsv_line(folder: Path) -> Callable[[], Any]:
    path = long_file(folder / "train.tsv", b"sentence\tlabel\n")
    return lambda: read_tsv(path, spec_of("glue/sst2"), labelled=True)


def tsv_header(folder: Path) -> Callable[[], Any]:
    path = long_file(folder / "basic_train.tsv")
    return lambda: list(read_official_tsv(path))


def batch_file(folder: Path) -> Callable[[], Any]:
    long_file(folder / "data_batch_1.bin")
    return lambda: open_image(folder, 0)


def model_config(folder: Path) -> Callable[[], Any]:
    long_file(folder / "config.json")
    return lambda: architecture_of(folder)


def config_to_start_from(folder: Path) -> Callable[[], Any]:
    long_file(folder / "config.json")
    return lambda: model_keys(folder)


def tokenizer(folder: Path) -> Callable[[], Any]:
    long_file(folder / "tokenizer.json")
    return lambda: load_local_tokenizer(folder)


def tokenizer_of_data(folder: Path) -> Callable[[], Any]:
    long_file(folder / "tokenizer.json")
    return lambda: load_tokenizer(folder)


def manifest_of_a_store(folder: Path) -> Callable[[], Any]:
    long_file(folder / "manifest.json")
    return lambda: open_store(folder)


def manifest_of_weights(folder: Path) -> Callable[[], Any]:
    long_file(folder / "manifest.json")
    return lambda: verify(folder)


BOMBS = (
    *(huge_png, large_png, tiff_named_png, npz, wanted_member, unwanted_member, header_of_an_archive, nested_labels),
    *(tsv_line, tsv_header, batch_file),
    *(model_config, config_to_start_from, tokenizer, tokenizer_of_data, manifest_of_a_store, manifest_of_weights),
)


def _read(read: Callable[[], Any], answers: Any) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + GIB, used + GIB))
    began = time.process_time()
    try:
        read()
        answers.send(("read", "", 0.0))
    except BaseException as error:  # noqa: BLE001 (the test looks at its type)
        answers.send((type(error).__name__, str(error), time.process_time() - began))


@pytest.mark.reliability("R9")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux how much memory there is")
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_it_is_refused_in_five_seconds_and_a_gibibyte(bomb: Callable[[Path], Callable[[], Any]], scratch: Path) -> None:
    answers, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_read, args=(bomb(scratch), theirs))
    child.start()
    child.join()
    kind, message, seconds = answers.recv()
    assert kind in (DataError.__name__, BrokenCheckpoint.__name__), message
    assert "MemoryError" not in message
    assert "Unable to allocate" not in message
    assert seconds < 5

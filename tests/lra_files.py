"""Tiny Long-Range Arena downloads in every format that is read, with texts and images one can know by heart."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from transnormer.config.load import load_config
from transnormer.config.schema import RunConfig
from transnormer.data.lra import listops, pathfinder
from transnormer.data.lra.pathfinder.official import COLUMNS

# The last byte of the second is no UTF-8, the third is longer than what is kept of it.
TEXTS = [b"A fine film, and na\xc3\xafve.", b"Dull <br /> and long\xff", b"so so " * 800, b"Never again!"]


def reviews(count: int = 20) -> list[tuple[bytes, int]]:
    """(text, label); no two texts are equal."""
    return [(b"%d: %s" % (number, TEXTS[number % 4]), number % 2) for number in range(count)]


def write_imdb_folders(folder: Path, count: int = 20) -> Path:
    """aclImdb as it is unpacked, with the unlabelled reviews that nobody asked for."""
    for part in ("train", "test"):
        for number, (text, label) in enumerate(reviews(count)):
            path = folder / "aclImdb" / part / ("pos" if label else "neg") / f"{number}_7.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    (folder / "aclImdb" / "train" / "unsup").mkdir()
    (folder / "aclImdb" / "train" / "unsup" / "0_0.txt").write_text("no label")
    return folder


def write_jsonl(folder: Path, count: int = 20) -> Path:
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        rows = [
            json.dumps({"text": text.decode("utf-8", "surrogateescape"), "label": label}, ensure_ascii=False)
            for text, label in reviews(count)
        ]
        (folder / f"{part}.jsonl").write_bytes("\n".join([*rows, ""]).encode("utf-8", "surrogateescape"))
    return folder


def write_tsv(folder: Path, header: str | None = None, count: int = 20) -> Path:
    """Two columns, in the order of the header."""
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        rows = [b"%d\t%s" % (label, text) for text, label in reviews(count)]
        if header == "text\tlabel":
            rows = [b"%s\t%d" % (text, label) for text, label in reviews(count)]
        lines = rows if header is None else [header.encode(), *rows]
        (folder / f"{part}.tsv").write_bytes(b"\r\n".join(lines))
    return folder


def pack(folder: Path, archive: Path) -> Path:
    """A folder's content as .tar.gz, .tar.bz2 or .tar.xz."""
    with tarfile.open(archive, f"w:{archive.suffix[1:]}") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    return archive


def colours(count: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """RGB images [N, 32, 32, 3] and labels."""
    rng = np.random.default_rng(5)
    return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 10


def _planes(images: np.ndarray) -> np.ndarray:
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar_binary(folder: Path) -> Path:
    """cifar-10-batches-bin: five batches of four images, and a test batch of all twenty."""
    target = folder / "cifar-10-batches-bin"
    target.mkdir(parents=True)
    images, labels = colours()
    records = np.concatenate([labels[:, None].astype(np.uint8), _planes(images)], axis=1)
    for number, part in enumerate(np.split(records, 5), start=1):
        (target / f"data_batch_{number}.bin").write_bytes(part.tobytes())
    (target / "test_batch.bin").write_bytes(records.tobytes())
    (target / "batches.meta.txt").write_text("airplane\n")
    return folder


def write_cifar_pickles(folder: Path, protocol: int | str = "python 2") -> Path:
    """cifar-10-batches-py, the same images."""
    target = folder / "cifar-10-batches-py"
    target.mkdir(parents=True)
    images, labels = colours()
    for number, rows in enumerate(np.split(np.arange(20), 5), start=1):
        (target / f"data_batch_{number}").write_bytes(cifar_pickle(images[rows], labels[rows], protocol))
    (target / "test_batch").write_bytes(cifar_pickle(images, labels, protocol))
    (target / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"airplane"]}))
    return folder


def cifar_pickle(images: np.ndarray, labels: Sequence[int] | np.ndarray, protocol: int | str = 2) -> bytes:
    """A batch as pickle.dumps has it, or byte for byte as the Python 2 that made the official ones wrote it."""
    if protocol == "python 2":
        pixels = _planes(images).tobytes()
        return b"".join(
            (
                b"\x80\x02}q\x01(U\x0bbatch_labelq\x02U\x04someq\x03U\x06labelsq\x04]q\x05(",
                b"".join(b"K%c" % int(label) for label in labels),
                b"eU\x04dataq\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01b\x87",
                b"q\nRq\x0b(K\x01K%cM\x00\x0c\x86q\x0ccnumpy\ndtype\nq\rU\x02u1q\x0eK\x00K\x01\x87q\x0fRq\x10"
                % len(images),
                b"(K\x03U\x01|q\x11NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x12b\x89",
                b"T" + len(pixels).to_bytes(4, "little") + pixels + b"q\x13tq\x14bu.",
            )
        )
    batch = {b"data": _planes(images), b"labels": [int(label) for label in labels], b"batch_label": b"some"}
    return pickle.dumps(batch, protocol=protocol)


def write_npz(path: Path, **changes: np.ndarray) -> Path:
    """Grey images as arrays."""
    rng = np.random.default_rng(6)
    arrays = {
        "x_train": rng.integers(0, 256, (20, 32, 32), dtype=np.uint8),
        "y_train": np.arange(20) % 10,
        "x_test": rng.integers(0, 256, (8, 32, 32), dtype=np.uint8),
        "y_test": np.arange(8),
    }
    buffer = io.BytesIO()
    np.savez(buffer, **{**arrays, **changes})
    path.write_bytes(buffer.getvalue())
    return path


def write_pairs(folder: Path, count: int = 12) -> Path:
    """tsv_data of the release; quotes are characters like any other."""
    target = folder / "tsv_data"
    target.mkdir(parents=True)
    for name in ("train", "eval", "test"):
        rows = [
            b'%.1f\tP%d\tQ%d\tabout "%s\tits %d sources \xfe' % (number % 2, number, number, TEXTS[number % 4], number)
            for number in range(count)
        ]
        (target / f"new_aan_pairs.{name}.tsv").write_bytes(b"\n".join(rows) + b"\n")
    return folder


def write_listops(folder: Path, count: int = 6) -> Path:
    target = folder / "listops-1000"
    target.mkdir(parents=True)
    for seed, name in enumerate(("train", "val", "test")):
        write_listops_tsv(target / f"basic_{name}.tsv", listops.generate(count, seed, processes=1))
    return folder


def write_listops_tsv(path: Path, examples: Iterable[tuple[np.ndarray, int]]) -> None:
    """One file of the release, with line ends as the official generator has them."""
    rows = "".join(f"{_nested(tokens)}\t{label}\r\n" for tokens, label in examples)
    path.write_bytes(f"Source\tTarget\r\n{rows}".encode("ascii"))


def _nested(tokens: np.ndarray) -> str:
    """Left-nested pairs: [MAX 4 3 ] becomes ( ( ( [MAX 4 ) 3 ) ] )."""
    pairs: list[str] = []  # of the open operators
    for word in (listops.TOKENS[token] for token in tokens):
        if word.startswith("["):
            pairs.append(word)
            continue
        value = f"( {pairs.pop()} ] )" if word == "]" else word
        if not pairs:
            return value
        pairs[-1] = f"( {pairs[-1]} {value} )"
    raise ValueError("the expression does not end")


def write_pathfinder(folder: Path, count: int = 20) -> Path:
    target = folder / "pathfinder32" / "curv_contour_length_14"
    write_pathfinder_folder(target, pathfinder.generate(count, 1, 32, processes=1))
    return folder


def write_pathfinder_folder(folder: Path, examples: Iterable[tuple[np.ndarray, int, dict[str, Any]]]) -> None:
    """One folder of the release, which has a thousand pictures in a batch."""
    (folder / "metadata").mkdir(parents=True)
    for at, (picture, label, metadata) in enumerate(examples):
        batch, number = divmod(at, 1000)
        images, filename = folder / "imgs" / str(batch), f"sample_{number}.png"
        images.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(images / filename)
        row = {**metadata, "subpath": f"imgs/{batch}", "filename": filename, "index": number, "label": label}
        with (folder / "metadata" / f"{batch}.npy").open("a", encoding="utf-8") as file:
            file.write(" ".join(str(row[name]) for name in COLUMNS) + "\n")


SOURCES = {
    "lra/listops": write_listops,
    "lra/text": write_imdb_folders,
    "lra/retrieval": write_pairs,
    "lra/pathfinder": write_pathfinder,
    "lra/image": write_cifar_binary,
}


def lra_config(task: str, store: Path | str, **changes: Any) -> RunConfig:
    """A shipped recipe with a model and a run of seconds; changes are written as `train__steps=3`."""
    tiny = {
        "model__hidden_size": 16,
        "model__intermediate_size": 24,
        "data__store": str(store),
        "lra__valid_examples": None,
        "optim__warmup_steps": 2,
        "train__steps": 6,
        "train__batch_size": 4,
        "train__micro_batch_size": 3,
        "train__eval_every": 2,
        "train__save_every": 3,
        "train__log_every": 1,
        "train__device": "cpu",
        **changes,
    }
    tree = load_config(task).model_dump()
    for name, value in tiny.items():
        section, _, key = name.partition("__")
        if key:
            tree[section][key] = value
        else:
            tree[section] = value
    return RunConfig.model_validate(tree)

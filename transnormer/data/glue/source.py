"""The examples of a GLUE task as its files have them: tab-separated, MRPC's original ones, or saved by `datasets`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transnormer.data.excerpts import sha256_of
from transnormer.data.glue import saved_dataset
from transnormer.data.glue.spec import FILES, Spec
from transnormer.data.glue.tsv import Row, decoded, read_tsv
from transnormer.errors import DataError

_ORIGINAL = {"train": "msr_paraphrase_train.txt", "test": "msr_paraphrase_test.txt"}
_DEV_IDS = "dev_ids.tsv"


@dataclass(frozen=True)
class Texts:
    """The rows of each split, how they were split, in words, and the hashes of the files they are from."""

    rows: dict[str, list[Row]]
    split_rule: str
    files: dict[str, str]


def is_labelled(split: str) -> bool:
    """Whether the answers of a split are published."""
    return not split.startswith("test")


def read_source(spec: Spec, source: Path) -> Texts:
    """All splits that a folder has; train and valid must be there."""
    if not source.exists():
        raise DataError(f"{source} does not exist", spec.about_source)
    for folder in (source, source / spec.folder, source / spec.name.partition("/")[2]):
        if (folder / saved_dataset.LIST).is_file():
            return _saved(spec, folder)
        if (folder / saved_dataset.STATE).is_file():
            raise DataError(f"{folder} is a saved data set of one split", "save the whole DatasetDict")
        if (folder / FILES["train"]).is_file():
            return _tab_separated(spec, folder)
        if spec.name == "glue/mrpc" and (folder / _ORIGINAL["train"]).is_file():
            return _original_mrpc(spec, folder)
    raise DataError(f"{source} has no {FILES['train']}", spec.about_source)


def _tab_separated(spec: Spec, folder: Path) -> Texts:
    found = {split: folder / name for split, name in spec.files if (folder / name).is_file()}
    # Editions of MNLI without its two genres have one dev.tsv.
    if "valid" not in found and (folder / FILES["valid"]).is_file():
        found["valid"] = folder / FILES["valid"]
    if spec.name == "glue/mrpc" and "test" not in found and (folder / _ORIGINAL["test"]).is_file():
        found["test"] = folder / _ORIGINAL["test"]
    _require_valid(found, folder, spec)
    rows = {split: read_tsv(path, spec, is_labelled(split)) for split, path in found.items()}
    return Texts(rows, "the source's own", {path.name: sha256_of(path) for path in found.values()})


def _saved(spec: Spec, folder: Path) -> Texts:
    found = saved_dataset.split_folders(folder)
    rows = {split: saved_dataset.read_saved(path, spec, is_labelled(split)) for split, path in found.items()}
    files = [file for path in found.values() for file in saved_dataset.files_of(path)]
    return Texts(rows, "the source's own", {f"{file.parent.name}/{file.name}": sha256_of(file) for file in files})


def _original_mrpc(spec: Spec, folder: Path) -> Texts:
    """Microsoft's own two files; GLUE's list says which of the training pairs are its development set."""
    files = {split: folder / name for split, name in _ORIGINAL.items() if (folder / name).is_file()}
    if not (folder / _DEV_IDS).is_file():
        raise DataError(
            f"{folder / _DEV_IDS} is missing: it says which pairs of {_ORIGINAL['train']} are the development set",
            spec.about_source,
        )
    held_out = {tuple(ids) for _, ids in decoded(folder / _DEV_IDS)}
    pairs = [tuple(values[1:3]) for _, values in decoded(files["train"])][1:]
    rows: dict[str, list[Row]] = {"train": [], "valid": []}
    for ids, row in zip(pairs, read_tsv(files["train"], spec, labelled=True), strict=True):
        rows["valid" if ids in held_out else "train"].append(row)
    if not all(rows.values()):
        raise DataError(f"{folder / _DEV_IDS} names none or all of the pairs", "it is two columns: both ids of a pair")
    if "test" in files:
        rows["test"] = read_tsv(files["test"], spec, labelled=False)
    named = [*files.values(), folder / _DEV_IDS]
    return Texts(rows, f"valid are the pairs of {_DEV_IDS}", {path.name: sha256_of(path) for path in named})


def _require_valid(found: dict[str, Path], folder: Path, spec: Spec) -> None:
    for split in ("train", "valid"):
        if split not in found:
            raise DataError(f"{folder} has no {dict(spec.files)[split]}", spec.about_source)

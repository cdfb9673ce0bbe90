"""A data set that the `datasets` package saved with save_to_disk: a folder of Arrow files for each split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transnormer.data.glue.spec import Spec
from transnormer.data.glue.tsv import UNLABELLED, Row, find_column
from transnormer.errors import ConfigError, DataError
from transnormer.files import read_errors

LIST = "dataset_dict.json"
STATE, INFO = "state.json", "dataset_info.json"
_SPLITS = {
    "train": ("train",),
    "valid": ("validation", "validation_matched"),
    "valid_mismatched": ("validation_mismatched",),
    "test": ("test", "test_matched"),
    "test_mismatched": ("test_mismatched",),
}


def split_folders(folder: Path) -> dict[str, Path]:
    """Our names of the splits that a saved data set has, and their folders; train and valid must be there."""
    known = _json(folder / LIST).get("splits", [])
    found = {split: folder / name for split, names in _SPLITS.items() for name in names if name in known}
    for split in ("train", "valid"):
        if split not in found:
            raise DataError(f"{folder} has no split '{_SPLITS[split][0]}'", "save the whole DatasetDict")
    return found


def files_of(folder: Path) -> list[Path]:
    """The Arrow files of a split, in order."""
    state = _json(folder / STATE)
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise DataError(f"{folder} is a selection of another data set", "flatten_indices() before save_to_disk()")
    return [folder / entry["filename"] for entry in state.get("_data_files", [])]


def read_saved(folder: Path, spec: Spec, labelled: bool) -> list[Row]:
    """The examples of one split in their order; a DataError names the first that is wrong."""
    try:
        import pyarrow
        from pyarrow import ipc
    except ImportError:
        raise ConfigError(f"{folder} holds Arrow files", "pip install pyarrow, which reads them") from None
    files = files_of(folder)
    _check_labels(folder, spec)
    rows: list[Row] = []
    for path in files:
        try:
            with read_errors(path), pyarrow.memory_map(str(path)) as file:
                table = ipc.open_stream(file).read_all()
        except pyarrow.ArrowInvalid as problem:
            raise DataError(f"{path} is not an Arrow stream: {problem}", "save the data set again") from problem
        columns = [find_column(table.column_names, names, str(path)) for names in spec.texts]
        texts = [table.column(column).to_pylist() for column in columns]
        labels = [UNLABELLED] * len(table)
        if labelled:
            labels = table.column(find_column(table.column_names, spec.label, str(path))).to_pylist()
        for number, (*each, label) in enumerate(zip(*texts, labels, strict=True)):
            where = f"{path} example {number}"
            if labelled and not all(isinstance(text, str) and text.strip() for text in each):
                raise DataError(f"{where}: a text is empty", "filter it out, and save the data set again")
            if label not in range(len(spec.labels)):
                raise DataError(f"{where}: the label is {label}", f"labels are 0 .. {len(spec.labels) - 1}")
            rows.append((tuple((text or "").strip() for text in each), label))
    if not rows:
        raise DataError(f"{folder} has no examples", "save the data set again")
    return rows


def _check_labels(folder: Path, spec: Spec) -> None:
    """Numbers of classes mean what ours do: the words, where our files have words, in the same order."""
    features = _json(folder / INFO).get("features") or {}
    names = next((features[name].get("names") for name in spec.label if name in features), None)
    if names is None:
        return
    if len(names) != len(spec.labels) or ("0" not in spec.labels and tuple(names) != spec.labels):
        raise DataError(
            f"{folder / INFO}: the labels are {', '.join(names)}", f"those of {spec.name} are {', '.join(spec.labels)}"
        )


def _json(path: Path) -> dict[str, Any]:
    with read_errors(path):
        text = path.read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError as problem:
        raise DataError(f"{path} is not JSON: {problem}", "save the data set again") from problem

"""A model folder of anybody, read whole or refused: safetensors alone, no code of its own, no tensor left random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers.utils import logging

from transnormer.data.tokenizers import local_tokenizer
from transnormer.errors import DataError
from transnormer.files import read_errors, require_small
from transnormer.models.quiet import no_progress_bars

# Nothing is fetched, and no code of a model's folder is run.
LOCAL = {"local_files_only": True, "trust_remote_code": False}


def load_pretrained(cls: Any, folder: Path, **options: Any) -> Any:
    """The model of a folder by a class of transformers or of ours, in evaluation mode, or a DataError.

    transformers gives random values to what the file has no tensor for, and reads pickles where there is no safetensors
    file: both are refused here. It is told to go on where shapes differ, because what it says of them is cut off.
    """
    require_small(*folder.glob("*.json"))
    for weights in folder.glob("*.safetensors"):
        with read_errors(weights):
            weights.open("rb").close()  # to safetensors, what may not be read does not exist
    with loading_errors(folder), no_progress_bars(), _no_warnings():
        model, report = cls.from_pretrained(
            folder, use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True, **LOCAL, **options
        )
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, wanted = mismatched[0]
        others = f" (and {len(mismatched) - 1} more differ)" if mismatched[1:] else ""
        raise DataError(
            f"{folder} cannot be loaded: its {name} is {list(found)}, and its config asks for {list(wanted)}{others}",
            hint="its weights and its config.json are of two models; save or export the model again",
        )
    if missing := sorted(report["missing_keys"]):
        others = f" and {len(missing) - 1} more" if missing[1:] else ""
        there = f", but {sorted(report['unexpected_keys'])[0]}" if report["unexpected_keys"] else ""
        raise DataError(
            f"{folder} cannot be loaded: its weights have no {missing[0]}{others}{there}",
            hint="save or export the model again",
        )
    return model.eval()


def load_local_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder; a DataError says what is wrong."""
    require_small(*folder.glob("*.json"))
    with loading_errors(folder):
        try:
            tokenizer = local_tokenizer(folder)
        except (OSError, ValueError) as error:
            if "backend tokenizer" in str(error) and (absent := _absent_files(folder)):
                raise _no_tokenizer(folder, absent) from error
            raise
    # transformers makes one of special tokens alone where the folder of a known architecture has none.
    if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
        raise _no_tokenizer(folder, _absent_files(folder))
    return tokenizer


def _absent_files(folder: Path) -> list[str]:
    """What a tokenizer that was saved there would have left, and is not there."""
    return [name for name in ("tokenizer.json", "tokenizer_config.json") if not (folder / name).is_file()]


def _no_tokenizer(folder: Path, absent: list[str]) -> DataError:
    why = f": {' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing" if absent else ""
    return DataError(f"{folder} has no tokenizer{why}", hint="save the model's there, with its save_pretrained")


@contextmanager
def loading_errors(folder: Path) -> Iterator[None]:
    """Turn what a library says about a folder that it cannot load into a DataError of one line."""
    try:
        yield
    except DataError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{folder} cannot be loaded: {str(error).strip().splitlines()[0]}",
            hint="save or export the model again, as safetensors; code that a folder brings along is never run",
        ) from error


@contextmanager
def _no_warnings() -> Iterator[None]:
    """What transformers would warn of is an error here, and is said once."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)

"""A trained model as a Hugging Face folder for others, written only once it has been read back and agrees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PreTrainedModel

from transnormer.data.tokenizers import text_start
from transnormer.errors import ConfigError, DataError
from transnormer.files import disk_errors, new_folder, require_free, write_text
from transnormer.models import heads
from transnormer.models.hub import AUTO_MODELS
from transnormer.models.loading import LOCAL, load_local_tokenizer, load_pretrained, loading_errors
from transnormer.models.quiet import no_progress_bars
from transnormer.models.saving import follow_umask

# The Auto class by which others load each head; a pair classifier has none and is loaded by its own name.
_AUTO_CLASSES = {name: getattr(transformers, auto) for auto, name in AUTO_MODELS.items()}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_HINT = "make room, or choose another --out"


def export_model(
    source: Path, out: Path, dtype: str = "float32", card: Callable[[dict[str, Any]], str] | None = None
) -> dict[str, Any]:
    """Copy the model and tokenizer of `source` to `out` in `dtype`; returns what was written and checked.

    The copy is loaded with its Auto class and must give the logits of the original, loaded in `dtype`, bit for bit.
    `card` makes README.md of what is returned.
    """
    require_free(out)
    with no_progress_bars():
        original, tokenizer = _load_original(source, DTYPES[dtype])
        if tokenizer is not None and original.can_generate():
            # What transformers' generate begins an empty prompt with, as `transnormer generate` does.
            original.generation_config.bos_token_id = text_start(tokenizer)
        with new_folder(out, _HINT) as partial:
            with disk_errors(out, hint=_HINT):
                original.save_pretrained(partial)
                follow_umask(partial)
                if tokenizer is not None:
                    tokenizer.save_pretrained(partial)
            report = _read_back(original, tokenizer, partial)
            if card is not None:
                write_text(partial / "README.md", card(report), _HINT)
            return report


def _load_original(source: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, Any]:
    with loading_errors(source):
        (name,) = AutoConfig.from_pretrained(source, **LOCAL).architectures or ("model of unknown kind",)
    cls = getattr(heads, name, None)
    if cls is None:
        raise ConfigError(f"{source} holds a {name}, which is not one of ours", hint="give a run folder")
    model = load_pretrained(cls, source, dtype=dtype)
    # Bytes, pixels and operators are their own ids: a classifier of those has no tokenizer.
    if "Classification" in name and not (source / "tokenizer_config.json").exists():
        return model, None
    return model, load_local_tokenizer(source)


def _read_back(original: PreTrainedModel, tokenizer: Any, folder: Path) -> dict[str, Any]:
    name = type(original).__name__
    auto = _AUTO_CLASSES.get(name, getattr(heads, name))
    copy = load_pretrained(auto, folder)
    # Longer than two blocks of DiagAttention, so that every kind of layer has something to do.
    length = min(200, original.config.max_position_embeddings)
    ids = torch.arange(length).remainder(original.config.vocab_size)[None]
    inputs = {"input_ids": ids, **({"pair_input_ids": ids.flip(1)} if "Pair" in name else {})}
    with torch.inference_mode():
        expected, got = original(**inputs).logits, copy(**inputs).logits
    if copy.dtype != original.dtype or not torch.equal(expected, got):
        raise DataError(f"the exported {name} does not give the logits of the original; nothing was written")
    if tokenizer is not None:
        copied = load_local_tokenizer(folder)
        if copied.get_vocab() != tokenizer.get_vocab():
            raise DataError("the exported tokenizer differs from the original; nothing was written")
    return {
        "architecture": name,
        "loads with": f"{auto.__module__.split('.')[0]}.{auto.__name__}",
        "tokenizer": "none, its inputs are ids" if tokenizer is None else type(tokenizer).__name__,
        "parameters": f"{copy.num_parameters():,}",
        "dtype": str(copy.dtype).removeprefix("torch."),
        "checked": f"the logits of {length} tokens are bit-equal after loading",
    }

"""A causal model and its tokenizer from any Hugging Face model folder, ready to write text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from transnormer.errors import ConfigError, DataError
from transnormer.files import require_small
from transnormer.models.loading import load_local_tokenizer, load_pretrained


def load_causal_lm(folder: Path, device: str = "auto") -> tuple[PreTrainedModel, Any]:
    """The model of a folder, in evaluation mode on `device` (auto: CUDA where there is one), and its tokenizer.

    It computes in `decode_dtype` of that device.
    """
    model = load_model(folder, device)
    return model, load_local_tokenizer(folder)


def load_model(folder: Path, device: str = "auto", dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The model alone, which computes in `dtype` where one is given."""
    architecture = architecture_of(folder)
    if not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        raise ConfigError(
            f"{folder} holds a {architecture}, which does not predict the next token",
            hint="give a causal language model",
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda, but torch sees no CUDA device", hint="use --device cpu")
    target = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    return load_pretrained(AutoModelForCausalLM, folder, dtype=dtype or decode_dtype(target)).to(target)


def decode_dtype(device: torch.device) -> torch.dtype | str:
    """What weights, activations and keys are decoded in: bfloat16 on CUDA, elsewhere what they were saved in.

    Recurrent memories and the angles of rotations are float32 on both.
    """
    return torch.bfloat16 if device.type == "cuda" else "auto"


def architecture_of(folder: Path) -> str:
    """The class name of the model in a folder, e.g. TransNormerForCausalLM."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder} is neither a run nor a model folder (no config.json)", hint="give a run folder, or RUN/final"
        )
    require_small(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}", hint="save the model with save_pretrained") from error
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not architectures:
        raise DataError(f"{path} names no architecture", hint="save the model with save_pretrained")
    return str(architectures[0])

"""TransNormer: the models of "The Devil in Linear Transformer" (EMNLP 2022) and what they are compared with.

Importing this package costs nothing: torch and transformers are loaded with the first name that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from transnormer.models.hub import register_auto_classes

if TYPE_CHECKING:
    from transnormer import ops
    from transnormer.generate.decoder import Decoder
    from transnormer.generate.sampling import Sampling
    from transnormer.mixers.diag import DiagAttention
    from transnormer.mixers.norm import NormAttention
    from transnormer.mixers.registry import build_mixer, list_mixers
    from transnormer.models.backbone import TransNormerModel
    from transnormer.models.cache import DecodeCache, state_bytes
    from transnormer.models.config import TransNormerConfig
    from transnormer.models.heads import (
        TransNormerForCausalLM,
        TransNormerForMaskedLM,
        TransNormerForPairClassification,
        TransNormerForSequenceClassification,
    )
    from transnormer.models.presets import list_presets, preset

__version__ = "0.1.0"

_HOMES = {
    "DiagAttention": "transnormer.mixers.diag",
    "NormAttention": "transnormer.mixers.norm",
    "build_mixer": "transnormer.mixers.registry",
    "list_mixers": "transnormer.mixers.registry",
    "list_presets": "transnormer.models.presets",
    "preset": "transnormer.models.presets",
    "DecodeCache": "transnormer.models.cache",
    "Decoder": "transnormer.generate.decoder",
    "Sampling": "transnormer.generate.sampling",
    "state_bytes": "transnormer.models.cache",
    "TransNormerConfig": "transnormer.models.config",
    "TransNormerModel": "transnormer.models.backbone",
    "TransNormerForCausalLM": "transnormer.models.heads",
    "TransNormerForMaskedLM": "transnormer.models.heads",
    "TransNormerForPairClassification": "transnormer.models.heads",
    "TransNormerForSequenceClassification": "transnormer.models.heads",
}

__all__ = [
    "DecodeCache",
    "Decoder",
    "DiagAttention",
    "NormAttention",
    "Sampling",
    "TransNormerConfig",
    "TransNormerForCausalLM",
    "TransNormerForMaskedLM",
    "TransNormerForPairClassification",
    "TransNormerForSequenceClassification",
    "TransNormerModel",
    "build_mixer",
    "list_mixers",
    "list_presets",
    "ops",
    "preset",
    "state_bytes",
]

register_auto_classes()


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("transnormer.ops")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'transnormer' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

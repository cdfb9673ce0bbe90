"""The tables of the paper by name. To add one, write its file and name its class here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from transnormer.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from transnormer.experiments.experiment import Experiment

# Modules and class names, not classes: listing the tables must not import torch.
TABLES = {
    "demo-rates": ("demo_rates", "DemoRates", "the learning rate of each model of the demo (not in the paper)"),
    "ablations": ("ablations", "Ablations", "ablations of both attentions, of the shell, of blocks (Tables 1-3, 8-12)"),
    "glue": ("glue", "Glue", "GLUE: what fine-tuning makes of masked language models, on seven tasks (Table 5)"),
    "lm": ("lm", "LanguageModels", "autoregressive language models: perplexity of nine methods (Table 4)"),
    "mlm": ("mlm", "MaskedModels", "masked language models: the pre-training of nine methods behind GLUE (Table 5)"),
    "lra": ("lra", "LongRangeArena", "Long-Range Arena: test accuracy of every method on five tasks (Table 6)"),
    "recall": ("recall", "Recall", "associative recall: accuracy by number of pairs (MQAR; not in the paper)"),
}


def list_tables() -> dict[str, str]:
    """What `transnormer reproduce` takes, with what it is."""
    return {name: about for name, (_, _, about) in sorted(TABLES.items())}


def experiment(name: str) -> Experiment:
    """The experiment of a name."""
    if name not in TABLES:
        raise ConfigError(f"no table '{name}'", hint=f"{did_you_mean(name, TABLES)} (see `transnormer list tables`)")
    module, class_name, _ = TABLES[name]
    return getattr(import_module(f"transnormer.experiments.paper.{module}"), class_name)()

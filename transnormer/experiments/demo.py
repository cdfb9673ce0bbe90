"""The demo: a tiny T2 and its vanilla twin read the same bytes of Python source, then are laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transnormer.config.load import load_config
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError
from transnormer.files import write_json

METHODS = ("t2", "llama", "linear_elu")
STATE_LENGTHS = (1024, 16_384)
PROMPT = "def read_file(path"
COLUMNS = ("model", "parameters", "valid bits/byte", "train tokens/s", "decode state, 1k", "decode state, 16k")


@dataclass(frozen=True)
class Twin:
    """One of the two models: its run folder, its result, and the bytes of its decode state at STATE_LENGTHS."""

    name: str
    folder: Path
    result: dict[str, Any]
    state_bytes: tuple[int, ...]

    def row(self) -> list[str]:
        """The twin's line in the table."""
        return [
            self.name,
            f"{self.result['parameters']:,}",
            f"{self.result['metrics']['bits_per_byte']:.3f}",
            f"{self.result['tokens_per_second']:,.0f}",
            *(f"{size / 1024:,.0f} KiB" for size in self.state_bytes),
        ]


def train_twins(out: Path, overrides: Sequence[str] = ()) -> list[Twin]:
    """Train both models on the same tokens, or take up where an earlier demo in `out` stopped."""
    twins = []
    for method in METHODS:
        name = f"{method}-tiny"
        folder = out / name
        config = load_config("demo", [*overrides, f"model.preset={name}"])
        result = _train_or_resume(config, folder)
        twins.append(Twin(name, folder, result, measure_state(folder / "final")))
    return twins


def _train_or_resume(config: RunConfig, folder: Path) -> dict[str, Any]:
    from transnormer.train.loop import resume, train

    config_file = folder / "config.yaml"
    if not config_file.exists():
        return train(config, folder)
    if load_config(config_file, []) != config:
        raise ConfigError(f"{folder} holds a demo with other settings", f"remove it or choose another --out: {folder}")
    return resume(folder)


def measure_state(model_folder: Path) -> tuple[int, ...]:
    """Bytes that a model holds while it decodes, after reading STATE_LENGTHS tokens: measured, not computed."""
    import torch

    from transnormer.generate.load import load_causal_lm
    from transnormer.models.cache import DecodeCache, state_bytes

    model, _ = load_causal_lm(model_folder, "cpu")
    cache, sizes = DecodeCache(model.config), []
    piece = torch.zeros(1, 512, dtype=torch.long)
    with torch.inference_mode():
        for length in STATE_LENGTHS:
            while cache.get_seq_length() < length:
                model(input_ids=piece, past_key_values=cache, logits_to_keep=1)
            sizes.append(state_bytes(cache))
    return tuple(sizes)


def write_demo_record(twins: Sequence[Twin], path: Path) -> None:
    """The table as a JSON file, with what it was made on; the README's table is generated from it."""
    from transnormer.environment import describe_environment

    record = {
        "columns": COLUMNS,
        "rows": [twin.row() for twin in twins],
        "tokens": twins[0].result["tokens"],
        "protocol": twins[0].result["protocol"],
        "runs": {twin.name: twin.result for twin in twins},
        "environment": describe_environment(),
    }
    write_json(path, record)

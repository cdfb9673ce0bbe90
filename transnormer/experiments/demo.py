"""The demo: three tiny models read the same bytes of Python source, then are laid side by side and looked into.

T2, softmax attention in T2's own shell with RoPE (`llama`), and a linear transformer (1+elu), each at its own best rate
of three: `transnormer reproduce demo-rates`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transnormer.config.load import load_config
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError
from transnormer.files import write_json
from transnormer.journal import relative_deviation

# Each with the rate that is best on the validation split, by the records in results/demo-rates.
RATES = {"t2": "4e-3", "llama": "4e-3", "linear_elu": "8e-3"}
METHODS = tuple(RATES)
STATE_LENGTHS = (1024, 16_384)
PROMPT = "def read_file(path"
TEXTS, MAP_TOKENS = 8, 128  # texts whose dilution is measured, and tokens of the one whose attention is drawn
COLUMNS = (
    "model",
    "rate",
    "parameters",
    "valid bits/byte",
    "attention area",
    "gradient std/mean",
    "decode state, 1k",
    "decode state, 16k",
)


@dataclass(frozen=True)
class Twin:
    """One of the models: its run folder, its result, and the bytes of its decode state at STATE_LENGTHS."""

    name: str
    folder: Path
    result: dict[str, Any]
    state_bytes: tuple[int, ...]

    @cached_property
    def config(self) -> RunConfig:
        """Of its run."""
        return load_config(self.folder / "config.yaml", [])

    @cached_property
    def dilution(self) -> dict[str, Any]:
        """Curves and areas of its layers on texts of the validation split (paper, section 3.2)."""
        from transnormer.analysis.dilution_of_models import measure
        from transnormer.analysis.subject import load_backbone, texts_of_run

        texts = texts_of_run(self.config, self.config.data.sequence_length, TEXTS)
        return {"run": self.name, **measure(load_backbone(self.folder / "final"), texts)}

    @cached_property
    def gradient_norms(self) -> tuple[list[int], list[float]]:
        """Logged steps, and the global gradient norm of each."""
        from transnormer.analysis.gradients import GLOBAL, read_trace

        trace = read_trace(self.folder, self.name)
        return trace.steps, trace.norms[GLOBAL]

    def row(self) -> list[str]:
        """Its line in the table."""
        return [
            self.name,
            f"{self.config.optim.lr:g}",
            f"{self.result['parameters']:,}",
            f"{self.result['metrics']['bits_per_byte']:.3f}",
            f"{self.dilution['mean']['area']:.3f}",
            f"{relative_deviation(self.gradient_norms[1]):.2f}",
            *(f"{size / 1024:,.0f} KiB" for size in self.state_bytes),
        ]


def check(config: RunConfig) -> None:
    """Refuse a demo that would have nothing to draw in the end."""
    if config.train.steps < 2 * config.train.log_every:
        raise ConfigError(
            f"train.steps={config.train.steps}: the demo draws gradient norms, and fewer than two would be logged",
            f"make train.steps at least {2 * config.train.log_every}, or set train.log_every=1",
        )


def train_twins(out: Path, overrides: Sequence[str] = ()) -> list[Twin]:
    """Train all models on the same tokens, or take up where an earlier demo in `out` stopped."""
    twins = []
    for method, rate in RATES.items():
        name = f"{method}-tiny"
        folder = out / name
        config = load_config("demo", [f"optim.lr={rate}", *overrides, f"model.preset={name}"])
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


def first_layer_attention(twin: Twin) -> Any:
    """The shares of attention in a model's first layer, the mean over its heads, on a text of the validation split."""
    from transnormer.analysis.attention_maps import shares
    from transnormer.analysis.subject import attentions, load_backbone, texts_of_run

    text = texts_of_run(twin.config, min(MAP_TOKENS, twin.config.data.sequence_length), 1).sequences[0]
    return shares(attentions(load_backbone(twin.folder / "final"), text)[0][0]).mean(dim=0)


def write_sample(twin: Twin, show: Any) -> str:
    """What a model makes of PROMPT, `show`n piece by piece."""
    from transnormer.generate.load import load_causal_lm
    from transnormer.generate.sampling import Sampling
    from transnormer.generate.stream import stream_text

    model, tokenizer = load_causal_lm(twin.folder / "final")
    pieces = [PROMPT]
    show(PROMPT)

    def take(piece: str) -> None:
        pieces.append(piece)
        show(piece)

    stream_text(model, tokenizer, PROMPT, 400, take, sampling=Sampling(0.7), seed=0, stop_at_eos=False)
    return "".join(pieces)


def write_demo_record(twins: Sequence[Twin], path: Path) -> None:
    """The table as a JSON file, with what it was made on; the README's table is generated from it."""
    from transnormer.analysis.dilution_of_models import PROTOCOL
    from transnormer.analysis.gradients import DEFINITION
    from transnormer.environment import describe_environment

    record = {
        "columns": COLUMNS,
        "rows": [twin.row() for twin in twins],
        "tokens": twins[0].result["tokens"],
        "protocol": twins[0].result["protocol"],
        "dilution": {"protocol": PROTOCOL, "runs": [twin.dilution for twin in twins]},
        "gradients": {
            "definition": DEFINITION,
            "runs": {twin.name: dict(zip(("steps", "norms"), twin.gradient_norms, strict=True)) for twin in twins},
        },
        "runs": {twin.name: twin.result for twin in twins},
        "environment": describe_environment(),
    }
    write_json(path, record)

"""The paper's speed table: training and inference steps per second of every method over the length, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from transnormer.bench.ops import GateFailed
from transnormer.bench.timing import median_seconds, peak_bytes
from transnormer.errors import ConfigError, did_you_mean
from transnormer.models.heads import TransNormerForCausalLM, TransNormerForSequenceClassification
from transnormer.models.presets import METHODS, SIZES, list_presets, preset


@dataclass(frozen=True)
class Setting:
    """The shell that all methods share. The paper does not state its own, so two readings of it are offered."""

    size: str
    batch: int | None  # sequences a step; None: as many as make TOKENS
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    block_size: int
    about: str


SETTINGS = {
    "paper": Setting(
        "lra-text", 20, 6, 128, 8, 32, "the authors' speed scripts; alone explains their OOM at 3K on 48 GB"
    ),
    "skyformer": Setting("lra-text", 16, 2, 64, 2, 64, "what the paper states: Skyformer's LRA configuration"),
    "tiny": Setting("tiny", 1, 4, 128, 4, 64, "the language models of the demo"),
    "lm": Setting("lm", None, 6, 512, 8, 64, "the paper's language model on 50,304 words, 65,536 tokens a step"),
}
TOKENS = 65_536
_LM_VOCABULARY = 50_304


def setting_named(name: str) -> Setting:
    """Look a setting up by name."""
    if name not in SETTINGS:
        raise ConfigError(f"unknown setting '{name}'", did_you_mean(name, SETTINGS))
    return SETTINGS[name]


def known_methods(setting: str) -> list[str]:
    """The methods that can run in a setting."""
    size = setting_named(setting).size
    return [method for method in METHODS if f"{method}-{size}" in list_presets()]


def measure_speed(
    setting_name: str, methods: list[str], lengths: list[int], device: torch.device, *, compiled: bool = False
) -> Iterator[dict[str, Any]]:
    """One row per method and length as they are measured; a cell that does not fit into memory says so."""
    known = known_methods(setting_name)
    for method in methods:
        if method not in known:
            raise ConfigError(f"method '{method}' cannot run in setting '{setting_name}'", did_you_mean(method, known))
    for method in methods:
        _check(setting_name, method, device)
        for length in lengths:
            row = {"method": method, "length": length, **_measure(setting_name, method, length, device, compiled)}
            if device.type == "cuda":
                torch.cuda.empty_cache()
            yield row


def _measure(setting_name: str, method: str, length: int, device: torch.device, compiled: bool) -> dict[str, Any]:
    setting = SETTINGS[setting_name]
    try:
        model = _build(setting, method, length).to(device)
        if compiled:
            torch.compiler.reset()
            model.compile(fullgraph=True, dynamic=False)
        train = _train_step(model, _batch(setting, length, device))
        row = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "train_peak_bytes": peak_bytes(train, device),
            "train_steps_per_second": 1 / median_seconds(train, device),
        }
        inference = _inference_step(model, _batch(setting, length, device))
        row["inference_peak_bytes"] = peak_bytes(inference, device)
        row["inference_steps_per_second"] = 1 / median_seconds(inference, device)
    except torch.OutOfMemoryError:
        return {"out_of_memory": True}
    return row


def _build(setting: Setting, method: str, length: int) -> nn.Module:
    name = f"{method}-{setting.size}"
    shell = preset(name)
    assert shell.intermediate_size is not None
    assert shell.mixers is not None
    # Methods that replace attention and FFN at once have more, thinner layers: keep their ratio to a plain layer.
    layers = setting.num_hidden_layers * shell.num_hidden_layers // SIZES[setting.size]["num_hidden_layers"]
    overrides: dict[str, Any] = {
        "hidden_size": setting.hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": setting.num_attention_heads,
        "max_position_embeddings": length,
        "intermediate_size": shell.intermediate_size * setting.hidden_size // shell.hidden_size,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if setting.size == "lm":
        overrides["vocab_size"] = _LM_VOCABULARY
    if "diag" in shell.mixers:
        overrides["mixer_options"] = {"diag": {"block_size": setting.block_size}}
    config = preset(name, **overrides)
    torch.manual_seed(0)
    return TransNormerForCausalLM(config) if config.causal else TransNormerForSequenceClassification(config)


def _batch(setting: Setting, length: int, device: torch.device) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    batch = setting.batch or max(1, TOKENS // length)
    ids = torch.randint(0, 256, (batch, length), generator=generator)
    labels = torch.randint(0, 2, (batch,), generator=generator) if setting.size.startswith("lra") else ids
    return {"input_ids": ids.to(device), "labels": labels.to(device)}


def _autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def _train_step(model: nn.Module, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    model.train()
    device = batch["input_ids"].device
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")

    def step() -> None:
        with _autocast(device):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _inference_step(model: nn.Module, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    model.eval()
    ids = batch["input_ids"]

    @torch.inference_mode()
    def step() -> None:
        with _autocast(ids.device):
            model(input_ids=ids)

    return step


@torch.inference_mode()
def _check(setting_name: str, method: str, device: torch.device) -> None:
    """The gate: on a short input the model as timed gives what it gives in float64 on the CPU."""
    setting = SETTINGS[setting_name]
    model = _build(setting, method, 256).eval()
    ids = _batch(setting, 256, torch.device("cpu"))["input_ids"][:2]
    expected = model.double()(input_ids=ids).logits
    with _autocast(device):
        logits = model.float().to(device)(input_ids=ids.to(device)).logits
    error = float((logits.double().cpu() - expected).norm() / expected.norm())
    allowed = 5e-2 if device.type == "cuda" else 1e-3
    if not error <= allowed:
        raise GateFailed(f"{method}: relative error {error:.2e} against float64, allowed are {allowed:.0e}")


def describe(setting_name: str, device: torch.device, *, compiled: bool = False) -> dict[str, Any]:
    """Everything that decides the numbers, to be printed above the table."""
    precision = "bf16 autocast, fused AdamW" if device.type == "cuda" else "float32"
    if compiled:
        precision += ", torch.compile"
    return {
        "setting": setting_name,
        **asdict(setting_named(setting_name)),
        "device": device.type,
        "precision": precision,
    }

"""Loss by position in the window: how much of its context a causal language model uses.

The target behind c tokens is predicted from these c alone. A model that uses all of them has a loss that falls with c
to the end of the window; one whose state forgets stops falling where its memory ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

from transnormer.analysis.figure_files import tidy
from transnormer.errors import DataError
from transnormer.tasks.causal_lm import CausalLM

_LOGITS_AT_ONCE = 2**27  # half a GiB of them in float32


@dataclass(frozen=True)
class Bin:
    """Targets behind `first` to `last` tokens of context, their mean loss and its standard error over windows."""

    first: int
    last: int
    loss: float
    standard_error: float

    @property
    def span(self) -> str:
        """Its tokens of context in words: 1, 2, 3-4, ..."""
        return f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"


def losses_by_position(model: nn.Module, task: CausalLM, split: str, windows: int | None = None) -> Tensor:
    """[windows, T] losses in nats of the first complete windows of a split."""
    source = task.windows(split)
    count = min(source.complete, windows or source.complete, task.config.data.eval_windows or source.complete)
    if count < 2:
        raise DataError(f"{count} window of the {split} split, too few for a mean with its error", "use more windows")
    device = next(model.parameters()).device
    size = max(1, _LOGITS_AT_ONCE // (task.config.data.sequence_length * task.store.vocab_size))
    parts = []
    with torch.no_grad():
        for start in range(0, count, size):
            ids = torch.stack([torch.from_numpy(source[i]).long() for i in range(start, min(start + size, count))])
            logits = model(input_ids=ids[:, :-1].to(device)).logits.float()
            losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten().to(device), reduction="none")
            parts.append(losses.view(len(ids), -1).double().cpu())
    return torch.cat(parts)


def doubling_bins(losses: Tensor) -> list[Bin]:
    """Positions 1, 2, 3-4, 5-8, ... of losses [windows, T]; the error is that of the mean of the windows' means."""
    bins, first, length = [], 1, losses.shape[1]
    while first <= length:
        last = min(max(1, 2 * (first - 1)), length)
        means = losses[:, first - 1 : last].mean(dim=1)
        bins.append(Bin(first, last, float(means.mean()), float(means.std() / math.sqrt(len(means)))))
        first = last + 1
    return bins


def facts(losses: Tensor) -> dict[str, Any]:
    """The curve of a model, whole and in doubling bins, for the record."""
    bins = doubling_bins(losses)
    return {
        "windows": losses.shape[0],
        "positions": losses.shape[1],
        "bins": [vars(each) for each in bins],
        "gain_of_last_doubling": bins[-2].loss - bins[-1].loss if len(bins) > 1 else None,
        "loss_by_position": losses.mean(dim=0).tolist(),
    }


def points(curves: Mapping[str, Sequence[Bin]]) -> list[dict[str, Any]]:
    """A row for each run and bin."""
    return [{"run": name, **vars(each)} for name, bins in curves.items() for each in bins]


def draw(curves: Mapping[str, Sequence[Bin]]) -> Figure:
    """Mean loss against the tokens of context on a doubling scale, with bars of one standard error."""
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, bins in curves.items():
        middle = [math.sqrt(each.first * each.last) for each in bins]
        errors = [each.standard_error for each in bins]
        axes.errorbar(middle, [each.loss for each in bins], errors, marker="o", markersize=4, capsize=2, label=name)
    longest = max((bins for bins in curves.values()), key=lambda bins: bins[-1].last)
    axes.set_xscale("log", base=2)
    ticks = [each.last for each in longest]
    axes.set_xticks(ticks, [f"{tick / 1024:g}k" if tick >= 1024 else f"{tick}" for tick in ticks])
    tidy(axes, "tokens of context", "loss (nats a token)")
    for text in axes.legend(frameon=False).get_texts():
        text.set_parse_math(False)
    return figure

"""How the next token is drawn: temperature, top-k and top-p, as operations of fixed shape that never ask the host."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from transnormer.errors import ConfigError

# Logits divided by less could leave float32, whose softmax is then no distribution.
_COLDEST = 1e-30


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn: from softmax(logits / temperature) of the `top_k` best and of the `top_p` best mass.

    `temperature` is above 0 (default 1), `top_k` at least 1, `top_p` above 0 and at most 1; None: all tokens.

    >>> tn.Sampling(temperature=0.8, top_p=0.95)
    Sampling(temperature=0.8, top_k=None, top_p=0.95)
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        greedy = "to take the best token each time, decode greedily (--greedy)"
        if not self.temperature > 0:
            raise ConfigError(f"temperature must be above 0, got {self.temperature}", greedy)
        if not _COLDEST <= self.temperature < math.inf:
            raise ConfigError(f"temperature must be finite and at least {_COLDEST:g}, got {self.temperature}", greedy)
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"top_k must be at least 1, got {self.top_k}", greedy)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}", greedy)

    def sample(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """One token [B, 1] of each row of logits [B, V], drawn from torch's global generator."""
        # Gumbel-max: the largest of logits / temperature - log(noise), with exponential noise, is a sample of the
        # softmax. Here with both signs flipped: four kernels on a GPU, for logits of any dtype.
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
        scores = torch.sub(noise, self.filter(logits), alpha=1 / self.temperature)
        return torch.argmin(scores, dim=-1, keepdim=True, out=out)

    def filter(self, logits: Tensor) -> Tensor:
        """Logits [B, V] with -inf in place of those that top-k and top-p exclude; ties with the last one stay."""
        if self.top_k is None and self.top_p is None:
            return logits
        if self.top_k is None:
            best = logits.sort(dim=-1, descending=True).values
        else:
            best = logits.topk(min(self.top_k, logits.shape[-1]), dim=-1).values
        last = best[:, -1:]
        if self.top_p is not None:
            # In float64, where no order of summation on a GPU changes which tokens stay: a seed repeats its text.
            probabilities = (best.double() / self.temperature).softmax(dim=-1)
            mass_before = probabilities.cumsum(dim=-1) - probabilities
            kept = (mass_before < self.top_p).sum(dim=-1, keepdim=True).clamp(min=1)
            last = best.gather(-1, kept - 1)
        return logits.masked_fill(logits < last, -math.inf)

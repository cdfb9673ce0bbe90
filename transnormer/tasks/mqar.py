"""Multi-query associative recall (Arora et al. 2023): what a state of fixed size forgets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transnormer.config.schema import RunConfig
from transnormer.data import mqar
from transnormer.data.example_plan import Plan
from transnormer.models.config import TransNormerConfig
from transnormer.models.heads import TransNormerForCausalLM
from transnormer.tasks.classification import Classification
from transnormer.tasks.contract import Batch
from transnormer.tasks.masking import IGNORED
from transnormer.tasks.token_windows import token_scores


class MQAR(Classification):
    """A causal language model that is asked at the queries alone, which is also where its loss is.

    accuracy  share of queries whose value is the likeliest token of all
    """

    sums: tuple[str, ...] = ("loss", "targets", "correct")  # type: ignore[misc]
    test_split = "test"

    @classmethod
    def plan(cls, config: RunConfig) -> Plan:
        return mqar.plan(config.recall)

    @classmethod
    def preparation(cls, name: str) -> str:
        return f"transnormer train {name} --out RUN"

    @property
    def pairs(self) -> int:
        """Pairs of a sequence, and so queries."""
        return int(self.store.meta["generated"]["pairs"])

    @property
    def targets_per_example(self) -> int:
        return self.pairs

    @property
    def protocol(self) -> str:
        made = self.store.meta["generated"]
        return (
            f"share of queries answered with the right value: {made['pairs']} pairs in sequences of "
            f"{made['sequence_length']} tokens of {made['vocab_size']}, each key asked once; checkpoint chosen on the "
            "validation split, test split scored once with it"
        )

    @property
    def model_fields(self) -> dict[str, Any]:
        return {"causal": True}

    def vocab_size(self, model: TransNormerConfig) -> int:
        return self.store.vocab_size

    def build_model(self) -> TransNormerForCausalLM:
        return TransNormerForCausalLM(self.model_config())

    def assemble(self, ids: Sequence[Tensor], masks: Sequence[Tensor], labels: Tensor) -> Batch:
        return {"input_ids": ids[0], "targets": answers(ids[0], self.pairs)}

    def targets_in(self, batch: Batch) -> int:
        return self.pairs * len(batch["input_ids"])

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> Tensor:
        return model(input_ids=batch["input_ids"], targets=batch["targets"]).loss

    def score(self, model: Any, batch: Batch) -> Tensor:
        targets = batch["targets"]
        if "weights" in batch:  # 0 for an example that only fills up a batch
            targets = targets.masked_fill(batch["weights"].unsqueeze(-1) == 0, IGNORED)
        loss, hits = model.score_targets(batch["input_ids"], targets)
        return torch.stack([loss.double(), (targets != IGNORED).sum().double(), hits.double()])

    def metrics(self, sums: dict[str, float]) -> dict[str, float]:
        return token_scores(sums)

    def save_assets(self, folder: str | Path) -> None:
        """Nothing: keys and values are their own ids."""


def answers(ids: Tensor, pairs: int) -> Tensor:
    """What is to be predicted at each of the tokens [B, T]: the value of a key behind the pairs, IGNORED elsewhere."""
    keys, values, rest = ids[:, : 2 * pairs : 2], ids[:, 1 : 2 * pairs : 2], ids[:, 2 * pairs :]
    asked = rest.unsqueeze(-1) == keys.unsqueeze(1)  # [B, T - 2 pairs, pairs]
    found = (asked * values.unsqueeze(1)).sum(dim=-1)
    pairs_part = torch.full_like(ids[:, : 2 * pairs], IGNORED)
    return torch.cat([pairs_part, torch.where(asked.any(dim=-1), found, IGNORED)], dim=1)

"""What classifiers share: one vector of all tokens, the layers on it, and the loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transnormer.errors import ConfigError
from transnormer.models.config import TransNormerConfig


class ClassifierHead(nn.Module):
    """Dense, activation, dropout, linear: RoBERTa's with tanh, which drops out its input too, LRA's with ReLU."""

    def __init__(self, input_size: int, config: TransNormerConfig) -> None:
        super().__init__()
        assert config.classifier_hidden_size is not None
        self.dense = nn.Linear(input_size, config.classifier_hidden_size)
        self.is_roberta = config.classifier_act == "tanh"
        self.activation = torch.tanh if self.is_roberta else F.relu
        own = config.classifier_dropout
        self.dropout = nn.Dropout(config.dropout if own is None else own)
        self.out_proj = nn.Linear(config.classifier_hidden_size, config.num_labels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(x) if self.is_roberta else x
        return self.out_proj(self.dropout(self.activation(self.dense(x))))


def pool(x: Tensor, mask: Tensor | None, how: str, padded_length: int | None = None) -> Tensor:
    """One vector per sequence from [B, T, d]: the mean over real tokens, or the first or last real one.

    `padded_mean` is the sum over real tokens divided by `padded_length`, whatever the padding of this batch.
    """
    if mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    weights = mask.to(x.dtype)
    if how == "padded_mean":
        assert padded_length is not None
        return (weights[:, None, :] @ x).squeeze(1) / padded_length
    if how != "mean":
        count = mask.long().cumsum(dim=1)
        target = torch.ones_like(count[:, -1:]) if how == "first" else count[:, -1:]
        weights = ((count == target) & mask.bool()).to(x.dtype)
    # A sequence without a single real token pools to zero rather than to 0/0.
    return (weights[:, None, :] @ x).squeeze(1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


def classification_loss(logits: Tensor, labels: Tensor, problem_type: str | None = None) -> Tensor:
    """The loss of logits [B, C] by transformers' name of the problem.

    Unset, it is the squared error of a single output (STS-B), the cross entropy of several for class indices, and one
    binary cross entropy for each where labels are floating-point numbers.
    """
    if problem_type is None:
        several = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        problem_type = "regression" if logits.shape[-1] == 1 else several
    if problem_type == "single_label_classification":
        # Floating-point labels are a distribution over the classes, [B, C].
        return F.cross_entropy(logits.float(), labels if labels.is_floating_point() else labels.reshape(-1))
    if logits.shape[-1] == 1:
        labels = labels.reshape(-1, 1)
    if labels.shape != logits.shape:
        raise ConfigError(
            f"labels must be {list(logits.shape)}, one number for each output, got {list(labels.shape)}",
            f"the problem_type is {problem_type}",
        )
    if problem_type == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(logits.float(), labels.float())
    return F.mse_loss(logits.float(), labels.float())

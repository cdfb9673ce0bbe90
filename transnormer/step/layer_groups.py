"""Which parameters are one layer, for the norms of their gradients: the embedding, each layer, and the head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

EMBEDDING, HEAD = "embedding", "head"


def layer_groups(names: Sequence[str]) -> dict[str, list[int]]:
    """The places of parameters in `names` by group, from the input to the output; layers count from 0.

    An embedding that is also the decoder's matrix has one gradient, which counts as the embedding's.
    """
    groups: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        groups.setdefault(_group(name), []).append(place)
    return dict(sorted(groups.items(), key=lambda item: _order(item[0])))


def membership(groups: Mapping[str, Sequence[int]], device: torch.device) -> Tensor:
    """[groups, parameters]: 1 where a parameter is in a group."""
    matrix = torch.zeros(len(groups), sum(map(len, groups.values())), device=device)
    for row, places in zip(matrix, groups.values(), strict=True):
        row[list(places)] = 1
    return matrix


def _group(name: str) -> str:
    if found := re.search(r"\blayers\.(\d+)\.", name):
        return f"layer {found[1]}"
    return EMBEDDING if re.search(r"\bembed_", name) else HEAD


def _order(group: str) -> tuple[int, int]:
    ends = {EMBEDDING: (0, 0), HEAD: (2, 0)}
    return ends[group] if group in ends else (1, int(group.removeprefix("layer ")))

"""Attention maps: the matrices of a model on one text, a panel for each layer and head, tokens on the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from transnormer.errors import ConfigError

# With more tokens than this their names would lie over each other.
_MOST_NAMES = 64


def chosen(option: str, asked: Sequence[int] | None, count: int) -> list[int]:
    """The layers or heads that were asked for, counted from 1, or all of them."""
    for number in asked or ():
        if not 1 <= number <= count:
            raise ConfigError(
                f"{option} {number}: the model has {option.lstrip('-')}s 1 to {count}", f"e.g. {option} 1"
            )
    return list(dict.fromkeys(asked)) if asked else list(range(1, count + 1))


def shares(weights: Tensor) -> Tensor:
    """|weights| as a share of each row, as dilution counts them; a row without weight stays zero."""
    size = weights.abs()
    return size / size.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)


def mean_over_heads(weights: Tensor) -> list[list[float]]:
    """The mean share over the heads of [1, H, N, N], rounded, as a record holds it."""
    return [[round(value, 6) for value in row] for row in shares(weights[0]).mean(dim=0).tolist()]


def points(weights: Tensor, layer: int, heads: Sequence[int], tokens: Sequence[str]) -> list[dict[str, Any]]:
    """Every weight of some heads of a layer's [1, H, N, N] that is not zero: a line of a table each."""
    rows = []
    for head in heads:
        matrix = weights[0, head - 1]
        for query, key in matrix.nonzero().tolist():
            place = {"query": query + 1, "key": key + 1, "query_token": tokens[query], "key_token": tokens[key]}
            rows.append({"layer": layer, "head": head, **place, "weight": float(matrix[query, key])})
    return rows


def draw(panels: dict[tuple[str, str], Tensor], tokens: Sequence[str]) -> Figure:
    """A grid of matrices [N, N] by the names of its rows and columns; each has a colour scale of its own.

    Blue are weights from zero up; where some are negative, red is above zero and blue below.
    """
    rows, columns = (list(dict.fromkeys(name[i] for name in panels)) for i in range(2))
    named = len(tokens) <= _MOST_NAMES
    side = max(2.2, 0.13 * len(tokens)) if named else 2.6
    figure = Figure(figsize=(side * len(columns) + 0.6, side * len(rows) + 0.6), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for (row, column), matrix in panels.items():
        axes = grid[rows.index(row)][columns.index(column)]
        show_matrix(axes, matrix)
        axes.set_title(f"{row}, {column}", fontsize=9)
        if named:
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_ticks(range(len(tokens)), tokens, fontsize=6, parse_math=False)
            axes.tick_params(axis="x", rotation=90, length=0)
            axes.tick_params(axis="y", length=0)
        else:
            axes.tick_params(labelsize=6)
    return figure


def show_matrix(axes: Any, matrix: Tensor, largest: float | None = None) -> None:
    """One matrix as an image, rows of queries from the top."""
    largest = largest or float(matrix.abs().max()) or 1.0
    signed = bool((matrix < 0).any())
    colours = {"cmap": "RdBu_r", "vmin": -largest} if signed else {"cmap": "Blues", "vmin": 0}
    axes.imshow(matrix.numpy(), vmax=largest, interpolation="nearest", **colours)

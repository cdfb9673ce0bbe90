"""Dilution of trained models on real text: rows of a record, its points, and the picture of the curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from transnormer.analysis.dilution import RATIOS, Dilution, DilutionSum, dilution, mean_of, uniform_attention
from transnormer.analysis.figure_files import tell, tidy
from transnormer.analysis.subject import Texts, attentions
from transnormer.models.backbone import TransNormerModel

PROTOCOL = (
    "l(i, r, N): the share of a token's attention on the r·N tokens around it, the neighbourhood moved inside the "
    "sequence at its ends; means over positions, heads and texts, in a model's mean every layer counts the same; "
    "signed weights, and weights without a row sum, by their absolute value as a share of their row; rows without any "
    "weight left out; area: under the curve from r = 0 to 1; equal weights: of the same weight on all visible tokens; "
    "DiagAttention sees its block alone, so that its area is large by construction, and may exceed that of softmax"
)

_MARKED = 10  # of so many points of a curve one says what it is


def measure(model: TransNormerModel, texts: Texts) -> dict[str, Any]:
    """Curve and area of every layer and of their mean, as JSON values."""
    sums = [DilutionSum() for _ in model.layers]
    signed = [False] * len(sums)
    for ids in texts.sequences:
        for index, weights in enumerate(attentions(model, ids)):
            sums[index].add(weights)
            signed[index] |= bool((weights < 0).any())
    layers = [total.mean() for total in sums]
    assert model.config.mixers is not None
    rows = zip(model.config.mixers, signed, layers, strict=True)
    return {
        "causal": model.config.causal,
        "heads": model.config.num_attention_heads,
        "texts": len(texts.sequences),
        "tokens": sum(map(len, texts.sequences)),
        "uniform": _as_json(dilution(uniform_attention(len(ids), model.config.causal) for ids in texts.sequences)),
        "mean": _as_json(mean_of(layers)),
        "layers": [{"mixer": mixer, "signed": is_signed, **_as_json(layer)} for mixer, is_signed, layer in rows],
        **texts.facts,
    }


def _as_json(found: Dilution) -> dict[str, Any]:
    return {"area": found.area, "empty_rows": found.empty_rows, "scores": list(found.scores)}


def points(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every point of every curve: a line of a table each."""
    found = []
    for row in rows:
        curves = {
            "uniform": row["uniform"],
            "mean": row["mean"],
            **{str(i): layer for i, layer in enumerate(row["layers"], start=1)},
        }
        for layer, curve in curves.items():
            mixer = curve.get("mixer", "")
            for ratio, score in zip(RATIOS, curve["scores"], strict=True):
                found.append({"run": row["run"], "layer": layer, "mixer": mixer, "r": ratio, "l": score})
    return found


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """The mean curve of each model, and beside it the area of each of its layers."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    curves, areas = figure.subplots(1, 2)
    for index, row in enumerate(rows):
        label, colour = row["run"].replace("$", r"\$"), f"C{index}"
        curves.plot(RATIOS, row["mean"]["scores"], color=colour, label=f"{label} (area {row['mean']['area']:.3f})")
        layers = [layer["area"] for layer in row["layers"]]
        areas.plot(range(1, len(layers) + 1), layers, color=colour)
        for r, score in list(zip(RATIOS, row["mean"]["scores"], strict=True))[::_MARKED]:
            tell(curves, r, score, f"{row['run']}: {score:.2f} of the attention within r = {r:g}", s=14, color=colour)
        for number, layer in enumerate(row["layers"], start=1):
            said = f"{row['run']}, layer {number} ({layer['mixer']}): area {layer['area']:.3f}"
            tell(areas, number, layer["area"], said, s=18, color=colour)
    for causal, uniform in {row["causal"]: row["uniform"] for row in rows}.items():
        label = f"equal weights, {'causal' if causal else 'bidirectional'} (area {uniform['area']:.3f})"
        curves.plot(RATIOS, uniform["scores"], color="grey", linestyle=":" if causal else "--", label=label)
        areas.axhline(uniform["area"], color="grey", linestyle=":" if causal else "--")
    curves.legend(frameon=False, fontsize=8, loc="lower right")
    deepest = max(len(row["layers"]) for row in rows)
    areas.set_xticks(range(1, deepest + 1))
    tidy(curves, "neighbourhood r, as a share of the sequence", "attention inside, l(i, r, N)")
    tidy(areas, "layer", "area under its curve")
    return figure

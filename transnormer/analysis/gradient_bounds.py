"""How large the gradient of an attention can be against its scores, with the paper's bounds (section 3.1, appendix D).

A row of four scores in which one key holds half of the weight, where softmax and linear attention are steepest:

    softmax        p = exp(s_k) / Σ exp(s_j)      |∂p/∂s| <= 1/4
    linear         p = s_k / Σ s_j                |∂p/∂s| <= 1/(4 s), without end as s goes to 0
    NormAttention  o = rms(Σ s_j v_j)             no p; |∂L/∂s| <= 3 c₁c₂d / (2√ε), in truth c₁c₂/√ε

What the loss sees of all three is |∂L/∂s|, at most c₁ ‖∂o/∂s‖ with c₁ the norm of the gradient that comes from above,
and c₂ that of the longest value; both are 1 here. For softmax and linear attention the paper has √n c₁c₂/4 and
√n c₁c₂/(4s), which holds from n = 4 keys on: in truth it is c₁c₂/2 and c₁c₂/(2s) for any n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from transnormer.analysis.figure_files import tidy
from transnormer.ops import rms_norm

KEYS, WIDTH, EPS = 4, 64, 1e-6
SCORES = [10 ** (exponent / 8) for exponent in range(-48, 17)]  # 1e-6 to 1e2
COLOURS = {"softmax": "C0", "linear": "C1", "norm": "C2"}
NAMES = {"softmax": "softmax", "linear": "linear (1+elu)", "norm": "NormAttention"}

Attend = Callable[[Tensor], Tensor]


def linear_weights(scores: Tensor) -> Tensor:
    """p of linear attention, whose scores φ(q)φ(k)ᵀ are positive."""
    return scores / scores.sum()


def norm_output(values: Tensor) -> Attend:
    """o of NormAttention as a function of the scores of one query."""
    return lambda scores: rms_norm(scores @ values, eps=EPS)


def steepest(function: Attend, scores: Tensor) -> Tensor:
    """By score, the largest |∂L/∂s| that a gradient of norm 1 from above can make of ∂o/∂s: its norm."""
    return torch.autograd.functional.jacobian(function, scores).norm(dim=0)


def measure(seed: int = 0) -> list[dict[str, float]]:
    """A row for each score s, by autograd in float64: |∂p/∂s| and |∂L/∂s| of the key that has it."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(KEYS, WIDTH, generator=generator, dtype=torch.float64)
    values = values / values.norm(dim=-1, keepdim=True)  # c₂ = 1
    others = torch.full((KEYS - 1,), 1 / (KEYS - 1), dtype=torch.float64)
    rows = []
    for s in SCORES:
        shared = s * torch.cat([torch.ones(1, dtype=torch.float64), others])
        softmax = s + torch.cat([torch.zeros(1, dtype=torch.float64), others.log()])
        norm = norm_output(values)
        rows.append(
            {
                "s": s,
                "softmax_dp": _weight_gradient(lambda scores: scores.softmax(-1), softmax),
                "linear_dp": _weight_gradient(linear_weights, shared),
                "softmax_dL": float(steepest(lambda scores: scores.softmax(-1) @ values, softmax)[0]),
                "linear_dL": float(steepest(lambda scores: linear_weights(scores) @ values, shared)[0]),
                "norm_dL": float(steepest(norm, shared)[0]),
                **bounds(s),
            }
        )
    return rows


def bounds(s: float) -> dict[str, float]:
    """The paper's bounds at a score s, for c₁ = c₂ = 1, and the tight one of NormAttention."""
    return {
        "softmax_dp_bound": 1 / 4,
        "linear_dp_bound": 1 / (4 * s),
        "softmax_dL_bound": math.sqrt(KEYS) / 4,
        "linear_dL_bound": math.sqrt(KEYS) / (4 * s),
        "norm_dL_bound": 3 * WIDTH / (2 * math.sqrt(EPS)),
        "norm_dL_tight_bound": 1 / math.sqrt(EPS),
    }


def draw(rows: list[dict[str, float]]) -> Figure:
    """Two panels over the score: |∂p/∂s|, which NormAttention has not, and |∂L/∂s|.

    Bounds are wide and pale, so that they are seen where a curve reaches them; the tight one is dotted.
    """
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    for axes, kind, title in zip(figure.subplots(1, 2), ("dp", "dL"), ("|∂p/∂s|", "|∂L/∂s|, c₁ = c₂ = 1"), strict=True):
        x = [row["s"] for row in rows]
        for name, colour in COLOURS.items():
            if f"{name}_{kind}" not in rows[0]:
                continue
            axes.plot(x, [row[f"{name}_{kind}"] for row in rows], color=colour, label=NAMES[name])
            axes.plot(x, [row[f"{name}_{kind}_bound"] for row in rows], color=colour, linewidth=6, alpha=0.25)
            if (tight := f"{name}_{kind}_tight_bound") in rows[0]:
                axes.plot(x, [row[tight] for row in rows], color=colour, linestyle=":", linewidth=1.2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        tidy(axes, "score s of the key that holds half of the weight", f"{title} (pale: the paper's bound)")
        axes.legend(frameon=False)
    return figure


def facts(rows: list[dict[str, float]]) -> dict[str, Any]:
    """What was measured, in words and numbers, for the record."""
    keys = [key for key in rows[0] if not key.endswith("bound") and key != "s"]
    return {
        "analysis": "gradient-bounds",
        "what": "largest gradient of an attention against the score s of one key, by autograd in float64",
        "keys": KEYS,
        "width": WIDTH,
        "eps": EPS,
        "largest": {key: max(row[key] for row in rows) for key in keys},
        "bounds": "dp: 1/4, 1/(4s); dL with c1 = c2 = 1: sqrt(n)/4, sqrt(n)/(4s), 3d/(2 sqrt(eps)), tight 1/sqrt(eps)",
        "points": rows,
    }


def _weight_gradient(function: Attend, scores: Tensor) -> float:
    """The largest |∂p_j/∂s_0| over all weights p_j."""
    return float(torch.autograd.functional.jacobian(function, scores)[:, 0].abs().max())

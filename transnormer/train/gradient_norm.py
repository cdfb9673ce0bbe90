"""How evenly the gradient flowed in a run: the relative standard deviation of its global norm (paper, table 2)."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from transnormer.journal import read_journal, relative_deviation


def gradient_norm(journal: Path, nonfinite: int) -> dict[str, Any] | None:
    """Mean and relative deviation over every logged step, warm-up included: the paper says "all".

    The norm is that before clipping. A journal has each step once, however often the run was resumed. Steps without an
    update, whose gradient was not finite, are in no line of it: `nonfinite` is how many they were.
    """
    norms = [float(line["grad_norm"]) for line in read_journal(journal) if line["kind"] == "train"]
    if not norms:
        return None
    return {
        "steps": len(norms),
        "mean": statistics.fmean(norms),
        "relative_deviation": relative_deviation(norms),
        "nonfinite": nonfinite,
    }

"""The Long-Range Arena table of the paper, test accuracy in percent.

Qin et al., "The Devil in Linear Transformer", EMNLP 2022 (arXiv:2210.10340), table "Quantitative results on the
Long-Range Arena benchmark". Its rows from vanilla to skyformer are taken from Chen et al., "Skyformer", NeurIPS 2021
(arXiv:2111.00035), table 1, means of three seeds. It has no row for 1+elu.
"""

from __future__ import annotations

TASKS = ("listops", "text", "image", "pathfinder", "retrieval")

_COLUMNS = ("text", "listops", "retrieval", "pathfinder", "image")
_ROWS: dict[str, tuple[float, ...]] = {
    "vanilla": (61.95, 38.37, 80.69, 65.26, 40.57),
    "kernelized": (60.22, 38.78, 81.77, 70.73, 41.29),
    "nystrom": (64.83, 38.51, 80.52, 69.48, 41.30),
    "linformer": (58.93, 37.45, 78.19, 60.93, 37.96),
    "informer": (62.64, 32.53, 77.57, 57.83, 38.10),
    "performer": (64.19, 38.02, 80.04, 66.30, 41.43),
    "reformer": (62.93, 37.68, 78.99, 66.49, 48.87),
    "bigbird": (63.86, 39.25, 80.28, 68.72, 43.16),
    "skyformer": (64.70, 38.69, 82.06, 70.73, 40.77),
    "long_short": (66.62, 40.30, 81.68, 69.98, 47.60),
    "cosformer": (67.70, 36.50, 83.15, 71.96, 51.23),
    "flash_quad": (64.10, 42.20, 83.00, 63.28, 48.30),
    "flash": (64.10, 38.70, 86.10, 70.25, 47.40),
    "linear_elu": (),
    "t1": (66.90, 41.03, 83.11, 75.92, 51.60),
    "t2": (72.20, 41.60, 83.82, 76.80, 49.60),
}

# Every method of the zoo in the order of the table, with its accuracy on each task where the paper has one.
PAPER: dict[str, dict[str, float]] = {
    method: dict(zip(_COLUMNS, values, strict=True)) if values else {} for method, values in _ROWS.items()
}

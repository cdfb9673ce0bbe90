"""The speed table of the paper: steps per second over the length, training and inference.

Qin et al., "The Devil in Linear Transformer", EMNLP 2022 (arXiv:2210.10340), table 7, "Speed comparison on Long-Range
Arena benchmark", on an A6000 of 48 GB. Transformer there is vanilla, LS long_short, Nystorm nystrom.
"""

from __future__ import annotations

LENGTHS = (1024, 2048, 3072, 4096, 5120)
# None where a method ran out of memory.
INFERENCE_STEPS: dict[str, tuple[float | None, ...]] = {
    "vanilla": (39.06, 10.05, None, None, None),
    "flash_quad": (44.64, 16.45, 9.40, 6.54, 5.39),
    "flash": (40.32, 23.15, 16.89, 14.04, 13.16),
    "long_short": (32.05, 17.36, 12.14, 10.16, 9.06),
    "performer": (104.17, 56.82, 42.37, 33.78, 31.25),
    "cosformer": (86.21, 46.30, 32.47, 27.47, 25.00),
    "linformer": (104.17, 58.14, 40.32, 31.25, 26.32),
    "reformer": (78.13, 38.46, 26.04, 19.84, 16.23),
    "nystrom": (58.14, 38.46, 29.07, 23.81, 20.33),
    "t1": (113.64, 65.79, 46.30, 39.06, 35.71),
    "t2": (119.05, 65.79, 47.17, 39.68, 36.23),
}
TRAIN_STEPS: dict[str, tuple[float | None, ...]] = {
    "vanilla": (15.34, 3.05, None, None, None),
    "flash_quad": (19.84, 8.47, 5.19, 3.59, 2.92),
    "flash": (20.49, 11.06, 8.47, 7.23, 6.93),
    "long_short": (15.43, 8.68, 6.28, 5.24, 4.76),
    "performer": (28.41, 16.23, 12.02, 10.04, 9.06),
    "cosformer": (22.94, 12.82, 9.19, 7.79, 7.14),
    "linformer": (27.17, 15.63, 11.26, 8.77, 7.42),
    "reformer": (20.16, 10.87, 7.46, 5.69, 4.70),
    "nystrom": (14.12, 9.62, 7.46, 6.11, 5.26),
    "t1": (28.41, 17.12, 12.76, 10.87, 10.12),
    "t2": (29.41, 17.24, 12.95, 10.96, 10.16),
}
# By what a record of `transnormer bench speed` calls it, then by method and length.
PAPER: dict[str, dict[str, dict[int, float | None]]] = {
    kind: {method: dict(zip(LENGTHS, rates, strict=True)) for method, rates in table.items()}
    for kind, table in (("train", TRAIN_STEPS), ("inference", INFERENCE_STEPS))
}


def train_steps(method: str, length: int) -> float | None:
    """The paper's training steps a second, where it has them."""
    return PAPER["train"].get(method, {}).get(length)

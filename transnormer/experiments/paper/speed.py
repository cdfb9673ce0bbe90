"""The speed table of the paper (Table 7): training steps a second on an A6000, over the length of the input.

Qin et al. 2022; None where a method exhausts 48 GB. The paper does not print the memory behind its Figure 1.
"""

from __future__ import annotations

LENGTHS = (1024, 2048, 3072, 4096, 5120)

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


def train_steps(method: str, length: int) -> float | None:
    """The paper's number, where it has one."""
    return dict(zip(LENGTHS, TRAIN_STEPS.get(method, ()), strict=False)).get(length)

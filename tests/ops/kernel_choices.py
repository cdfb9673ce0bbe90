"""What the kernels are checked with: small cases for Triton's interpreter, few but telling ones for a GPU.

On a GPU a case costs what must be compiled for it (seconds), and Triton miscompiles some combinations silently. So each
case is a combination of everything that decides what is compiled, and runs at several shapes that share it. Covered are

* bfloat16: every pair of values of all options, and every combination of direction, head size, one or many segments
  and long or short ones (NormAttention), of kind, direction and head size (DiagAttention);
* float32: every head size that the kernels take in both directions (NormAttention) or with both kinds (DiagAttention),
  and every value of each option;
* float16, which NormAttention computes in float32 and DiagAttention as bfloat16 but for the type of its products: both
  directions or kinds;
* lengths that are whole chunks, which the causal NormAttention compiles without masks: every pair of what is left;
* lengths below a chunk and of one token, value heads of another size than the keys' (one column more, as linear_elu
  has), blocks that are no power of two.

`test_covering.py` checks that this is so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import pytest
import torch
from _pytest.mark import ParameterSet
from covering import covering

# batch, length, heads. None of what Triton treats as special (1, multiples of 16) is among the lengths, heads and
# numbers of chunks, so that all share one compilation.
SHARED = ((2, 257, 2), (1, 450, 3), (2, 900, 2))
UNMASKED, ONE_TOKEN = ((2, 512, 2), (1, 768, 3)), ((2, 1, 2), (1, 1, 3))
HEAD_SIZES = (16, 32, 64, 96, 128)
# What the kernels leave to PyTorch in float32 is left out.
IN_SINGLE = {"d": (16, 32), "block_size": (16, 64)}
NORM_OPTIONS = {
    "causal": (True, False),
    "d": HEAD_SIZES,
    "many_segments": (False, True),
    "short_segments": (False, True),
    "feature_map": ("1+elu", "elu", "identity"),
    "masked": (False, True),
    "carried": (False, True),
    "squared": (False, True),
    "limited": (False, True),
}
WHOLE_OPTIONS = {name: values for name, values in NORM_OPTIONS.items() if name not in ("causal", "masked")}
WHOLE_OPTIONS |= {"d": (16, 32, 64, 128)}
DIAG_OPTIONS = {
    "kind": ("softmax", "rela"),
    "d": HEAD_SIZES,
    "causal": (True, False),
    "block_size": (16, 64, 128),
    "masked": (False, True),
    "squared": (False, True),
}


def single(options: dict[str, tuple]) -> dict[str, tuple]:
    """The same options as far as there are kernels for float32."""
    return {name: IN_SINGLE.get(name, values) for name, values in options.items()}


@dataclass(frozen=True)
class Norm:
    """A way to call norm_attention.

    `short_segments`: a state is stored every 128 tokens, `carried`: with states before and after it, `squared`: with
    the sums of squares, `limited`: as where many programs wait.
    """

    causal: bool
    d: int
    many_segments: bool
    feature_map: str = "1+elu"
    masked: bool = False
    carried: bool = False
    short_segments: bool = False
    squared: bool = False
    limited: bool = False
    dtype: torch.dtype = torch.bfloat16
    e: int | None = None  # d
    shapes: tuple[tuple[int, int, int], ...] = SHARED

    def __str__(self) -> str:
        return _name(self)


@dataclass(frozen=True)
class Diag:
    """A way to call diag_attention."""

    kind: str
    d: int
    causal: bool
    block_size: int
    masked: bool = False
    squared: bool = False
    dtype: torch.dtype = torch.bfloat16
    e: int | None = None  # d
    shapes: tuple[tuple[int, int, int], ...] = SHARED

    def __str__(self) -> str:
        return _name(self)


def _name(case: Norm | Diag) -> str:
    """The name of a test: its lengths, then what differs from nothing."""
    lengths = "T" + "+".join(str(length) for _, length, _ in case.shapes)
    values = {field.name: getattr(case, field.name) for field in fields(case) if field.name != "shapes"}
    flags = [
        name if value is True else f"{name}={value}" for name, value in values.items() if value not in (False, None)
    ]
    return " ".join([lengths, *flags]).replace("torch.", "")


def _norm_on_a_gpu() -> list[Norm]:
    in_single = covering(single(NORM_OPTIONS), 1, together=("causal", "d"))
    in_half = covering(NORM_OPTIONS, 2, together=("causal", "d", "many_segments", "short_segments"))
    cases = [Norm(**row, dtype=torch.float32) for row in in_single] + [Norm(**row) for row in in_half]
    for causal in (True, False):
        plain = Norm(causal, 64, many_segments=False)
        cases += [Norm(causal, 32, many_segments=True, dtype=torch.float16)]
        cases += [replace(plain, d=d, shapes=ONE_TOKEN, carried=True, masked=True) for d in (64, 128)]
        cases += [replace(plain, shapes=((2, 5, 2), (1, 13, 3))), replace(plain, many_segments=causal, e=65)]
        # Features beside values with a denominator: linear_elu, cosFormer and Performer, narrow and of 65 columns.
        cases += [replace(plain, d=d, e=e) for d, e in ((16, 17), (64, 33), (32, 20), (128, 17), (128, 33), (128, 65))]
    cases += [Norm(**row, causal=True, shapes=UNMASKED) for row in covering(WHOLE_OPTIONS, 2)]
    # Segments one after the other, from nothing.
    for d, masked in product((16, 32, 64), (False, True)):
        cases += [Norm(True, d, many_segments=False, masked=masked, short_segments=True)]
    cases += [replace(plain, shapes=UNMASKED), Norm(True, 32, many_segments=True, dtype=torch.float32, shapes=UNMASKED)]
    return cases


def _diag_on_a_gpu() -> list[Diag]:
    in_single = covering(single(DIAG_OPTIONS), 1, together=("kind", "d"))
    in_half = covering(DIAG_OPTIONS, 2, together=("kind", "d", "causal"))
    cases = [Diag(**row, dtype=torch.float32) for row in in_single] + [Diag(**row) for row in in_half]
    for kind in DIAG_OPTIONS["kind"]:
        plain = Diag(kind, 64, True, 64)
        cases += [replace(plain, dtype=torch.float16, shapes=SHARED[:2]), replace(plain, e=32), replace(plain, e=100)]
    cases += [replace(plain, shapes=ONE_TOKEN), replace(plain, shapes=((2, 5, 2), (1, 13, 3)))]
    cases += [replace(plain, shapes=UNMASKED), replace(plain, block_size=48, causal=False)]
    # Tiles of less than four warps.
    for kind, causal in product(DIAG_OPTIONS["kind"], (True, False)):
        cases += [Diag(kind, 16, causal, 32, shapes=UNMASKED), Diag(kind, 16, causal, 32), Diag(kind, 32, causal, 16)]
    return cases


NORM_ON_A_GPU, DIAG_ON_A_GPU = _norm_on_a_gpu(), _diag_on_a_gpu()


def parameters(cases: Sequence[Norm | Diag]) -> list[ParameterSet]:
    """For pytest.mark.parametrize."""
    return [pytest.param(case, id=str(case)) for case in cases]


# The interpreter computes with numpy, which has no bfloat16: float16 stands in for it. Each case comes with one segment
# and with many, one of them in half precision. Long ones, which take seconds, are of one sequence.
NORM_INTERPRETED = [
    Norm(
        causal,
        d,
        many_segments,
        feature_map,
        masked,
        carried,
        dtype=dtype,
        e=e,
        shapes=((1 if length > 200 else 2, length, 2),),
    )
    for number, (length, d, e, feature_map, causal, masked, carried) in enumerate(
        (
            (1, 16, 16, "1+elu", True, False, True),
            (5, 16, 16, "elu", True, True, False),
            (130, 24, 16, "1+elu", True, True, True),
            (128, 16, 17, "identity", True, False, False),
            (70, 80, 16, "1+elu", True, True, True),
            (128, 16, 16, "1+elu", True, False, True),
            (256, 16, 128, "elu", True, False, False),
            (300, 80, 16, "1+elu", True, False, True),
            (70, 16, 16, "1+elu", False, True, True),
            (130, 24, 16, "elu", False, False, False),
        )
    )
    for many_segments in (False, True)
    for dtype in ((torch.float32, torch.float16)[(number + many_segments) % 2],)
]
# Segments one after the other, and segments that are cut again.
NORM_INTERPRETED += [
    Norm(
        True, 16, many_segments, masked=masked, carried=carried, short_segments=True, dtype=dtype, shapes=((1, 450, 2),)
    )
    for dtype in (torch.float32, torch.float16)
    for many_segments, masked, carried in ((False, False, False), (False, True, True), (True, False, False))
]
DIAG_INTERPRETED = [
    Diag(kind, d, causal, block_size, masked, dtype=dtype, e=e, shapes=((2, length, 2),))
    for length, d, e, block_size, kind, causal, masked in (
        (5, 16, 16, 64, "softmax", True, True),
        (70, 24, 24, 16, "rela", True, False),
        (129, 16, 16, 64, "softmax", True, False),
        (70, 16, 40, 64, "softmax", False, True),
        (70, 16, 16, 24, "rela", False, True),
        (33, 40, 16, 16, "rela", True, True),
    )
    for dtype in (torch.float32, torch.float16)
]
RMS_OPTIONS = {
    "shape": ((3, 5), (2, 9, 64), (70, 100), (1, 4, 2, 512)),
    "gain": (True, False),
    "dtype": (torch.float32, torch.bfloat16),
}
RMS_ON_A_GPU = [tuple(row.values()) for row in covering(RMS_OPTIONS, 2)]
RMS_INTERPRETED = list(product(*list(RMS_OPTIONS.values())[:2], (torch.float32, torch.float16)))

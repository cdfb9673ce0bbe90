"""Pieces of kernels that rotate queries and keys: φ, reflection and rotation of a tile that lies in registers."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from transnormer.ops.kernels.feature_maps import phi

# π/2 as a sum. The first two have so few bits that an angle minus multiples of them is exact: with a fused multiply-add
# always, without one up to angles of 2¹⁷.
_QUARTER = tl.constexpr(1.5703125)
_QUARTER_MORE = tl.constexpr(0.000484466552734375)
_QUARTER_REST = tl.constexpr(-6.39757843146e-7)
_TWO_OVER_PI = tl.constexpr(0.6366197723675814)
# 1.5 · 2²³: what is added to this number is rounded to a whole one, whose last bits are those of the sum.
_ROUNDING = tl.constexpr(12582912.0)
_FARTHEST = tl.constexpr(4194304.0)
# Programs that keep an H200 busy. With 2,048 and more, which compute more of the angles again, DiagAttention takes 4 to
# 15 percent longer, the bidirectional NormAttention 3 to 8.
_ENOUGH = 1024


@triton.jit
def cosines_and_sines(angles):
    """cos and sin of float32 angles, off by 7e-8 at most (up to 10⁶), with one range reduction for both.

    It is that of Cody and Waite (1980): the angle minus a number of quarter turns, without rounding. Angles above 2²²,
    which float32 knows to half a radian, are taken as 2²², so that cos and sin stay in [-1, 1].
    """
    angles = tl.clamp(angles, -_FARTHEST, _FARTHEST, propagate_nan=tl.PropagateNan.ALL)
    rounded = angles * _TWO_OVER_PI + _ROUNDING
    quarters = rounded - _ROUNDING
    rest = angles - quarters * _QUARTER - quarters * _QUARTER_MORE - quarters * _QUARTER_REST  # in [-π/4, π/4]
    square = rest * rest
    # The polynomials of these degrees with the least largest error: 4e-9 and 1e-10.
    sin = rest + rest * square * (-1.66666548e-1 + square * (8.332168927e-3 - square * 1.951601202e-4))
    cos = 4.166664663e-2 + square * (-1.388735537e-3 + square * 2.44370079e-5)
    cos = 1.0 + square * (-0.5 + square * cos)
    # A quarter turn makes (-sin, cos) of (cos, sin), two of them (-cos, -sin): bit 0 swaps, bit 1 is the sign.
    quarter = rounded.to(tl.uint32, bitcast=True)
    odd = (quarter & 1) != 0
    return _negated(tl.where(odd, sin, cos), quarter + 1), _negated(tl.where(odd, cos, sin), quarter)


@triton.jit
def _negated(x, quarter):
    """-x where bit 1 of `quarter` is set."""
    return (x.to(tl.uint32, bitcast=True) ^ ((quarter & 2) << 30)).to(tl.float32, bitcast=True)


@triton.jit
def reflected(tile, reflection):
    """tile - 2(tile·n)n for each row; reflecting twice changes nothing, so this is its own backward."""
    return tile - 2.0 * tl.sum(tile * reflection[None, :], 1)[:, None] * reflection[None, :]


@triton.jit
def pairs(tile):
    """The even and the odd columns of a tile."""
    return tl.split(tl.reshape(tile, (tile.shape[0], tile.shape[1] // 2, 2)))


@triton.jit
def interleaved(even, odd):
    """The tile with these even and odd columns."""
    return tl.reshape(tl.join(even, odd), (even.shape[0], 2 * even.shape[1]))


@triton.jit
def angles_of(POSITIONS, FREQS, REFLECTION, offsets, inside, D: tl.constexpr, BD: tl.constexpr,
              REFLECTED: tl.constexpr, UNMASKED: tl.constexpr):  # fmt: skip
    """What queries and keys of some rows share: positions, cosines and sines [rows, BD/2], the reflection.

    POSITIONS + offsets are those of the rows; UNMASKED: all of them exist.
    """
    at = POSITIONS + offsets
    positions = (tl.load(at) if UNMASKED else tl.load(at, mask=inside, other=0)).to(tl.float32)
    pair = tl.arange(0, BD // 2)
    frequencies = tl.load(FREQS + pair, mask=pair < D // 2, other=0.0)
    cos, sin = cosines_and_sines(positions[:, None] * frequencies[None, :])
    d = tl.arange(0, BD)
    reflection = tl.load(REFLECTION + d, mask=d < D, other=0.0) if REFLECTED else d.to(tl.float32)
    return positions, cos, sin, reflection


@triton.jit
def features(x, d, reflection, D: tl.constexpr, BD: tl.constexpr, PHI: tl.constexpr, REFLECTED: tl.constexpr):
    """The even and the odd columns of φ(x), reflected."""
    wide = phi(x.to(tl.float32), d, PHI, D, D < BD)
    return pairs(reflected(wide, reflection) if REFLECTED else wide)


@triton.jit
def rotated(x, d, cos, sin, reflection, D: tl.constexpr, BD: tl.constexpr, PHI: tl.constexpr,
            REFLECTED: tl.constexpr):  # fmt: skip
    """φ(x), reflected and rotated."""
    even, odd = features(x, d, reflection, D, BD, PHI, REFLECTED)
    return interleaved(even * cos - odd * sin, even * sin + odd * cos)


@triton.jit
def rotated_in_place(x, d, cos, sin, reflection, D: tl.constexpr, BD: tl.constexpr, REFLECTED: tl.constexpr):
    """x, reflected and rotated, by the threads that loaded it, for wide tiles that share cosines and sines.

    Otherwise the compiler rotates each tile as its product wants it to lie, and keeps cosines and sines twice: where
    they fill the registers, that is slower, with few columns faster (46 us against 52 with 16 of them on an H200). It
    moves nothing past a sum; a reflection has one.
    """
    y = rotated(x, d, cos, sin, reflection, D, BD, 0, REFLECTED)
    return (y if REFLECTED or BD < 64 else tl.sum(y[:, None, :], 1)).to(x.dtype)


@triton.jit
def mapped(x, d, POSITIONS, FREQS, REFLECTION, offsets, inside, D: tl.constexpr, BD: tl.constexpr,
           PHI: tl.constexpr, ROTATED: tl.constexpr, REFLECTED: tl.constexpr, UNMASKED: tl.constexpr):  # fmt: skip
    """φ of a tile as an attention has read it; ROTATED: and rotated, rounded as by a kernel of its own."""
    if ROTATED:
        _, cos, sin, reflection = angles_of(POSITIONS, FREQS, REFLECTION, offsets, inside, D, BD, REFLECTED, UNMASKED)
        return rotated(x, d, cos, sin, reflection, D, BD, PHI, REFLECTED).to(x.dtype)
    return phi(x, d, PHI, D, D < BD)


class Rotation(NamedTuple):
    """What an attention is told that rotates queries and keys as it reads them."""

    positions: Tensor | None = None
    inverse_frequencies: Tensor | None = None
    reflection: Tensor | None = None

    def arguments(self, packed: bool = False) -> tuple[Any, ...]:
        """Positions, inverse frequencies, reflection, and the strides of the positions, as kernels want them."""
        strides = (0, 0) if self.positions is None else position_strides(self.positions)
        if packed:  # where a row of the batch begins, a sequence does
            strides = (strides[1], strides[1])
        return self.positions, self.inverse_frequencies, self.reflection, *strides

    def options(self) -> dict[str, bool]:
        return {"ROTATED": self.inverse_frequencies is not None, "REFLECTED": self.reflection is not None}

    def heads_per_program(self, heads: int, others: int) -> int:
        """How many heads a program takes, if there are so many `others`: all that leave enough programs for a GPU."""
        if self.inverse_frequencies is None:
            return 1
        shares = (count for count in range(heads, 1, -1) if heads % count == 0)
        return next((count for count in shares if others * (heads // count) >= _ENOUGH), 1)


NO_ROTATION = Rotation()


def position_strides(positions: Tensor) -> tuple[int, int]:
    """From one sequence to the next (none where all have the same positions), and from one token to the next."""
    return (0 if positions.dim() == 1 else positions.stride(0)), positions.stride(-1)

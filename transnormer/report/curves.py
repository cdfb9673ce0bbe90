"""Curves as SVG text: inside a page they take its colours and say at each point what it is; a file stands by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM = 920, 400, 74, 36, 52
_LINE, _LETTER = 24, 7.8  # of the legend, and of its text
# Of a page, which has its own for the dark; a file by itself has these.
_COLOURS = ("#0b62b8", "#b8460b", "#23763a", "#8a3ab0", "#8a6a00", "#007a80", "#b0296b", "#5c6470")
_POINTS_WITH_TIPS = 200
_FEW = 8  # ticks


@dataclass(frozen=True)
class Curve:
    """One line of a plot; `dots` marks its points, for the few values of an evaluation."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    dots: bool = False


@dataclass(frozen=True)
class _Axis:
    """Values to pixels; `doubling` puts values of the same ratio at equal distances."""

    ticks: Sequence[float]
    low: float
    high: float
    start: float
    end: float
    doubling: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = map(math.log2, (self.low, self.high, value)) if self.doubling else (self.low, self.high, value)
        return self.start + (self.end - self.start) * (at - low) / (high - low)


def draw_curves(
    curves: Sequence[Curve], *, x_label: str, y_label: str, doubling: bool = False, log_y: bool = False
) -> str:
    """An SVG element with the curves; the same label has the same colour, dotted or not.

    `doubling` x values, such as lengths, stand at equal distances, each with its tick; `log_y` is for positive y values
    of several sizes. A value that is not finite is a gap.
    """
    styles = {label: _style(at) for at, label in enumerate(dict.fromkeys(curve.label for curve in curves))}
    legend, top = _legend(styles)
    x = _x_axis([x for curve in curves for x in curve.x], doubling)
    y = _y_axis([y for curve in curves for y in curve.y if math.isfinite(y)], top, log_y)
    parts = [legend, *_frame(x, y, x_label, y_label)]
    for curve in curves:
        parts += _line(curve, x, y, styles[curve.label])
    said = escape(f"{y_label} against {x_label}: {', '.join(styles)}")
    return (
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top + _HEIGHT + _BOTTOM}" '
        f'role="img" aria-label="{said}" font-family="system-ui, sans-serif" font-size="15">'
        f'<title>{said}</title><rect class="paper" width="100%" height="100%" fill="#fff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def plain(value: float) -> str:
    """A number as a person writes it: 40k, 1.5M, 0.25."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):g}{unit}"
    return f"{value:,.6g}"


def _finite(curve: Curve) -> list[tuple[float, float]]:
    return [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if math.isfinite(y)]


def _style(at: int) -> str:
    """A colour, and dashes once all colours are taken."""
    again, which = divmod(at, len(_COLOURS))
    dashes = f"; stroke-dasharray: {3 * again} 3" if again else ""
    return f"stroke: var(--s{which}, {_COLOURS[which]}){dashes}"


def _x_axis(values: Sequence[float], doubling: bool) -> _Axis:
    """From the first value to the last; few values, such as lengths, have a tick each."""
    there = sorted(set(values)) or [0.0]
    low, high = there[0], there[-1] if there[-1] > there[0] else there[0] + 1
    few = doubling or len(there) <= _FEW
    ticks = there if few else [tick for tick in _round_numbers(low, high) if low <= tick <= high]
    return _Axis(ticks, low, high, _LEFT, _WIDTH - _RIGHT, doubling)


def _y_axis(values: Sequence[float], top: float, log: bool) -> _Axis:
    """Between the round numbers that surround the values."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log and 0 < low < high:
        ticks = _one_two_five(low, high)
        return _Axis(ticks, ticks[0], ticks[-1], top + _HEIGHT, top, doubling=True)
    ticks = list(_round_numbers(low, high) if high > low else _round_numbers(low - 0.5, low + 0.5))
    return _Axis(ticks, ticks[0], ticks[-1], top + _HEIGHT, top)


def _round_numbers(low: float, high: float) -> Iterator[float]:
    """About six ticks, multiples of 1, 2 or 5 times a power of ten, that surround both ends."""
    power = 10 ** math.floor(math.log10((high - low) / 6))
    step = next(factor * power for factor in (1, 2, 5, 10) if (high - low) / (factor * power) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    yield from (float(f"{number * step:.12g}") for number in range(first, last + 1))


def _one_two_five(low: float, high: float) -> list[float]:
    """1, 2 and 5 times the powers of ten that surround both ends."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [float(f"{factor}e{power}") for power in powers for factor in (1, 2, 5)]
    first, last = max(step for step in steps if step <= low), min(step for step in steps if step >= high)
    return [step for step in steps if first <= step <= last]


def _legend(styles: dict[str, str]) -> tuple[str, float]:
    """Names in lines that are as long as the plot, and where they end."""
    parts, x, y = [], float(_LEFT), 18.0
    for label, style in styles.items():
        width = 34 + _LETTER * len(label) + 18
        if x > _LEFT and x + width > _WIDTH - _RIGHT:
            x, y = float(_LEFT), y + _LINE
        parts.append(
            f'<line x1="{x:.0f}" x2="{x + 24:.0f}" y1="{y - 5:.0f}" y2="{y - 5:.0f}" stroke-width="3" '
            f'style="{style}"/><text x="{x + 31:.0f}" y="{y:.0f}">{escape(label)}</text>'
        )
        x += width
    return "".join(parts), y + 16


def _frame(x: _Axis, y: _Axis, x_label: str, y_label: str) -> Iterator[str]:
    bottom, top = y.start, y.end
    for tick in y.ticks:
        at = f"{y(tick):.1f}"
        yield f'<line class="grid" x1="{x.start}" x2="{x.end}" y1="{at}" y2="{at}" stroke="#d9dfe6"/>'
        yield f'<text x="{_LEFT - 10}" y="{y(tick) + 5:.1f}" text-anchor="end">{plain(tick)}</text>'
    for tick in x.ticks:
        at, text = f"{x(tick):.1f}", _length(tick) if x.doubling else plain(tick)
        yield f'<line class="grid" x1="{at}" x2="{at}" y1="{bottom}" y2="{bottom + 5}" stroke="#d9dfe6"/>'
        yield f'<text x="{at}" y="{bottom + 22:.0f}" text-anchor="middle">{text}</text>'
    yield f'<text x="{(x.start + x.end) / 2:.0f}" y="{bottom + 45:.0f}" text-anchor="middle">{escape(x_label)}</text>'
    middle = f"{(top + bottom) / 2:.0f}"
    yield f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">{escape(y_label)}</text>'


def _length(tokens: float) -> str:
    return f"{tokens / 1024:g}k" if tokens >= 1024 else f"{tokens:g}"


def _line(curve: Curve, x: _Axis, y: _Axis, style: str) -> Iterator[str]:
    """The line, broken at gaps, and points that say what they are: dots, or spots that only a pointer finds."""
    runs: list[list[str]] = [[]]
    for at, value in zip(curve.x, curve.y, strict=True):
        if math.isfinite(value):
            runs[-1].append(f"{x(at):.1f},{y(value):.1f}")
        elif runs[-1]:
            runs.append([])
    width, opacity = ("2", "1") if curve.dots else ("1.4", "0.55")
    for run in filter(None, runs):
        yield (
            f'<polyline points="{" ".join(run)}" fill="none" stroke-width="{width}" stroke-opacity="{opacity}" '
            f'style="{style}"/>'
        )
    points = _finite(curve)
    every = 1 if curve.dots else math.ceil(len(points) / _POINTS_WITH_TIPS) or 1
    fill = style.partition(";")[0].replace("stroke", "fill")
    spot = f'r="4.5" style="{fill}"' if curve.dots else 'r="7" fill="transparent"'
    yield '<g class="points">'
    for at, value in points[::every]:
        title = escape(f"{curve.label}: {value:,.5g} at {at:,.10g}")
        yield f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" {spot}><title>{title}</title></circle>'
    yield "</g>"

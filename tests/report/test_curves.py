"""Charts: every point says what it is, ticks are plain numbers, gaps are gaps."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transnormer.report.curves import Curve, draw_curves, plain

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*curves: Curve, **options: bool) -> ET.Element:
    return ET.fromstring(draw_curves(curves, x_label="tokens", y_label="loss", **options))


def texts(svg: ET.Element) -> list[str | None]:
    return [text.text for text in svg.iter(f"{SVG}text")]


def test_a_legend_has_every_name_as_it_is() -> None:
    names = ["_under", r"a$\x$b", "<b> & 'c'"]
    svg = drawn(*(Curve(name, [0, 1], [1, 2], dots=True) for name in names))
    assert [text for text in texts(svg) if text in names] == names


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.25"), (1024, "1,024"), (40_000, "40k"), (1_500_000, "1.5M"), (2e9, "2G"), (-20_000, "-20k")],
)
def test_numbers_are_written_as_people_do(value: float, text: str) -> None:
    assert plain(value) == text


def test_axes_have_plain_numbers_and_labels() -> None:
    svg = drawn(Curve("a", list(range(0, 100_001, 5000)), [float(n) for n in range(21)]))
    assert {"0", "20k", "100k", "tokens", "loss"} <= set(texts(svg))


def test_lengths_that_double_have_a_tick_each() -> None:
    svg = drawn(Curve("a", [512, 1024, 65536], [3.0, 2.0, 1.0], dots=True), doubling=True)
    assert {"512", "1k", "64k"} <= set(texts(svg))
    xs = [float(circle.attrib["cx"]) for circle in svg.iter(f"{SVG}circle")]
    assert xs[1] - xs[0] == pytest.approx((xs[2] - xs[0]) / 7, abs=0.2)


def test_values_of_several_sizes_have_a_log_axis() -> None:
    svg = drawn(Curve("a", [0, 1, 2], [60.0, 600.0, 2800.0], dots=True), log_y=True)
    assert {"50", "100", "200", "500", "1,000", "2,000", "5,000"} <= set(texts(svg))
    ys = [float(circle.attrib["cy"]) for circle in svg.iter(f"{SVG}circle")]
    assert (ys[0] - ys[1]) / (ys[0] - ys[2]) == pytest.approx(math.log(10) / math.log(2800 / 60), abs=0.01)


def test_a_value_that_is_no_number_breaks_the_line() -> None:
    svg = drawn(Curve("a", [0, 1, 2, 3, 4], [5.0, 4.0, math.nan, 2.0, 1.0], dots=True))
    assert [len(line.attrib["points"].split()) for line in svg.iter(f"{SVG}polyline")] == [2, 2]
    titles = [title.text for title in svg.iter(f"{SVG}title")]
    assert titles[1:] == ["a: 5 at 0", "a: 4 at 1", "a: 2 at 3", "a: 1 at 4"]


def test_many_points_have_few_tips() -> None:
    svg = drawn(Curve("a", range(5000), [float(n) for n in range(5000)]))
    assert len(list(svg.iter(f"{SVG}circle"))) <= 200


def test_curves_without_a_point_are_an_empty_chart() -> None:
    assert list(drawn(Curve("a", [], [])).iter(f"{SVG}polyline")) == []
    assert list(drawn(Curve("a", [1], [math.inf])).iter(f"{SVG}polyline")) == []


@given(st.lists(st.tuples(*[st.floats(-1e9, 1e9, allow_subnormal=False)] * 2), min_size=1, max_size=30))
def test_every_point_lies_inside_its_frame(points: list[tuple[float, float]]) -> None:
    svg = drawn(Curve("a", [x for x, _ in points], [y for _, y in points], dots=True))
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    circles = list(svg.iter(f"{SVG}circle"))
    assert len(circles) == len(points)
    assert all(0 < float(circle.attrib["cx"]) < width and 0 < float(circle.attrib["cy"]) < height for circle in circles)

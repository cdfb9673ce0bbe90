"""Figure 1 from records: a changed record changes the point, and what lacks a record is named."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from transnormer.experiments.paper.lra import PAPER
from transnormer.report.figure_section import figure_section
from transnormer.report.figures import LENGTH, Missing, early_maps, score_against_speed, write_figure
from transnormer.report.page import Page, render

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A copy of the records behind Figure 1."""
    (tmp_path / "bench").mkdir()
    shutil.copy(RESULTS / "bench" / "speed-paper.json", tmp_path / "bench")
    shutil.copytree(RESULTS / "lra-tuned", tmp_path / "lra-tuned")
    return tmp_path


def point_of(results: Path, method: str) -> dict:
    return next(point for point in score_against_speed(results).points if point["method"] == method)


def test_a_point_is_what_its_records_say(results):
    before = point_of(results, "t2")
    assert before["paper_score"] == pytest.approx(64.80, abs=0.01)
    assert before["paper_train_steps_per_second"] == 17.24
    file = results / "lra-tuned" / "listops-t2-42.json"
    record = json.loads(file.read_text())
    record["test_accuracy"] += 5
    file.write_text(json.dumps(record))
    speeds = results / "bench" / "speed-paper.json"
    tree = json.loads(speeds.read_text())
    for row in tree["rows"]:
        if (row["method"], row["length"]) == ("t2", LENGTH):
            row["train_steps_per_second"], row["train_peak_bytes"] = 7.0, 11
    speeds.write_text(json.dumps(tree))
    after = point_of(results, "t2")
    assert after["score"] == pytest.approx(before["score"] + 1)
    assert (after["train_steps_per_second"], after["train_peak_bytes"]) == (7.0, 11)


def test_a_method_without_all_tasks_is_named_with_its_command(results):
    (results / "lra-tuned" / "text-vanilla-42.json").unlink()
    drawn = score_against_speed(results)
    assert point_of(results, "vanilla")["score"] is None
    assert any("vanilla" in note and "transnormer reproduce lra --setup tuned" in note for note in drawn.notes)
    assert {point["method"] for point in drawn.points} == {method for method, paper in PAPER.items() if paper} | {
        "linear_elu"
    }


def test_stand_in_data_are_named(results):
    labels = {
        file.name.split("-")[0]
        for file in (results / "lra-tuned").glob("*.json")
        if json.loads(file.read_text())["data"]["kind"] == "stand-in"
    }
    notes = " ".join(score_against_speed(results).notes)
    assert labels
    assert all(label in notes for label in labels)


def test_without_records_the_command_is_named(tmp_path):
    with pytest.raises(Missing, match="transnormer bench speed"):
        score_against_speed(tmp_path)
    with pytest.raises(Missing, match="transnormer analyse attention"):
        early_maps(tmp_path)


def test_names_of_circles_cover_no_other_and_no_circle(results):
    picture = score_against_speed(results).picture
    picture.draw_without_rendering()
    for axes in picture.axes:
        boxes = [Text.get_window_extent(text) for text in axes.texts]
        circles = []
        for circle in axes.collections:
            x, y = axes.transData.transform(circle.get_offsets()[0])
            radius = math.sqrt(circle.get_sizes()[0]) / 2 * picture.dpi / 72
            circles.append(Bbox.from_extents(x - radius, y - radius, x + radius, y + radius))
        assert len(boxes) == len(circles)
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert not any(box.overlaps(circle) for box in boxes for circle in circles)


def test_a_circle_says_what_it_is(results):
    write_figure("figure1", results)
    t2 = point_of(results, "t2")
    memory = t2["train_peak_bytes"] / 2**30
    said = f"t2: mean score {t2['score']:.1f} %, {t2['train_steps_per_second']:,.1f} steps/s, {memory:.2f} GiB at most"
    svg = ET.parse(results / "figures" / "figure1.svg")
    assert said in [title.text for title in svg.iter("{http://www.w3.org/2000/svg}title")]
    page = render(Page("Figures", "", [figure_section(results / "figures", "figure1")]))
    for part in (f"<title>{said}</title>", f">{memory:.2f}</td>", ">Figure 1</h2>", ">peak memory, GiB</th>"):
        assert part in page
    assert "<img" not in page

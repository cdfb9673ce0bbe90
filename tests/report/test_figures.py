"""Figure 1 from records: a changed record changes the point, and what lacks a record is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from transnormer.experiments.paper.lra import PAPER
from transnormer.report.figures import LENGTH, Missing, early_maps, score_against_speed

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
    assert {point["method"] for point in drawn.points} == PAPER.keys()


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

"""Gradient norms from journals: what is read, what their spread is, and what is refused."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path

import pytest

from transnormer.analysis.gradients import GLOBAL, draw, points, read_trace
from transnormer.errors import ConfigError, DataError


def run_of(folder: Path, lines: list[dict]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text("task: causal_lm\n")
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def line(step: int, norm: float, **layers: float) -> dict:
    more = {"layer_grad_norms": layers} if layers else {}
    return {"kind": "train", "step": step, "loss": 1.0, "grad_norm": norm, "tokens": 1, **more}


def test_a_trace_has_the_logged_steps_and_layers(tmp_path: Path) -> None:
    lines = [line(2, 5.0, **{"embedding": 3.0, "layer 0": 4.0}), {"kind": "eval", "step": 2, "metrics": {"loss": 1.0}}]
    run = run_of(tmp_path / "run", [*lines, line(4, 10.0, **{"embedding": 6.0, "layer 0": 8.0})])
    trace = read_trace(run)
    assert trace.steps == [2, 4]
    # A journal counts layers from 0, a reader from 1.
    assert trace.norms == {GLOBAL: [5.0, 10.0], "embedding": [3.0, 6.0], "layer 1": [4.0, 8.0]}
    facts = trace.facts()
    assert facts["steps"] == {"first": 2, "last": 4, "logged": 2}
    assert facts["norms"]["layer 1"] == {"mean": 6.0, "relative_deviation": pytest.approx(1 / 3)}
    assert points([trace])[1] == {"run": "run", "step": 4, GLOBAL: 10.0, "embedding": 6.0, "layer 1": 8.0}
    assert len(draw([trace]).axes) == 2


def test_where_only_the_end_of_a_run_has_layers_the_trace_is_of_the_end(tmp_path: Path) -> None:
    run = run_of(tmp_path, [line(1, 9.0), *(line(step, 1.0, **{"layer 0": 1.0}) for step in (2, 3))])
    assert read_trace(run).steps == [2, 3]


def test_without_layers_there_is_the_global_trace(tmp_path: Path) -> None:
    run = run_of(tmp_path, [line(step, float(step)) for step in range(1, 7)])
    trace = read_trace(run, after=2)
    assert not trace.has_layers
    assert trace.norms == {GLOBAL: [3.0, 4.0, 5.0, 6.0]}
    assert len(draw([trace]).axes) == 1


@pytest.mark.parametrize("largest", [0.12, 0.2, 0.6, 5.0, 4000.0])
def test_ticks_of_norms_do_not_lie_over_each_other(tmp_path: Path, largest: float) -> None:
    figure = draw([read_trace(run_of(tmp_path, [line(1, 0.08), line(2, largest)]))])
    figure.draw_without_rendering()
    [axes] = figure.axes
    labels = [label for which in ("major", "minor") for label in axes.yaxis.get_ticklabels(which=which)]
    inside = sorted(
        (box.y0, box.y1)
        for label in labels
        if label.get_text() and axes.bbox.y0 < (box := label.get_window_extent()).y0 < axes.bbox.y1
    )
    assert len(inside) > 1
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(inside))


@pytest.mark.parametrize(
    ("lines", "after", "message"),
    [([], 0, "no logged steps"), ([1], 0, "1 logged step,"), ([1, 2, 3], 2, "after step 2")],
)
def test_too_few_steps_are_refused(tmp_path: Path, lines: list[int], after: int, message: str) -> None:
    run = run_of(tmp_path, [line(step, 1.0) for step in lines])
    with pytest.raises(DataError, match=message):
        read_trace(run, after=after)


def test_no_run_and_no_journal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        read_trace(tmp_path)
    run = run_of(tmp_path, [])
    (run / "journal.jsonl").unlink()
    with pytest.raises(DataError, match="no journal"):
        read_trace(run)


def test_files_hold_the_points_and_are_the_same_each_time(tmp_path: Path) -> None:
    from transnormer.analysis.figure_files import write_finding

    trace = read_trace(run_of(tmp_path / "a_$x$", [line(1, 1.0), line(2, 3.0)]))
    written = [
        write_finding(tmp_path / out, "gradients", draw([trace]), points([trace]), trace.facts()) for out in ("1", "2")
    ]
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
    svg, png, table, record = written[0]
    assert svg.read_text().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    with table.open() as file:
        assert list(csv.DictReader(file)) == [
            {"run": "a_$x$", "step": "1", GLOBAL: "1.0"},
            {"run": "a_$x$", "step": "2", GLOBAL: "3.0"},
        ]
    assert json.loads(record.read_text())["norms"][GLOBAL]["mean"] == 2.0

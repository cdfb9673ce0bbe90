"""`transnormer analyse dilution` and `attention` as a user types them, and `reproduce figures` from what they write."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

ENDINGS = ("svg", "png", "csv", "json")


@pytest.fixture(scope="module")
def vanilla_run(
    tmp_path_factory: pytest.TempPathFactory, store: Path, silent_cli: Callable[..., None], tiny: list[str]
) -> Path:
    run = tmp_path_factory.mktemp("runs") / "vanilla"
    silent_cli("train", "demo", "--out", run, "model.preset=vanilla-tiny", f"data.store={store}", *tiny)
    return run


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_dilution_of_two_runs_is_one_table_record_and_picture(cli, finished_run, vanilla_run, tmp_path):
    done = cli("analyse", "dilution", finished_run, vanilla_run, "--windows", "3", "--out", tmp_path)
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "dilution.json").read_text())
    t2, vanilla = record["runs"]
    assert [layer["mixer"] for layer in t2["layers"]] == ["diag", "norm"]
    assert [layer["signed"] for layer in t2["layers"]] == [False, True]
    assert (record["length"], t2["texts"], t2["tokens"]) == (32, 3, 96)
    assert t2["data"]["digest"] == vanilla["data"]["digest"]
    for row in record["runs"]:
        assert row["mean"]["area"] == pytest.approx(sum(layer["area"] for layer in row["layers"]) / 2)
        assert f"{row['mean']['area']:.3f}" in done.out
        for layer in row["layers"]:
            assert layer["scores"][0] == 0
            assert math.isclose(layer["scores"][-1], 1)
            assert 0.5 < layer["area"] < 1  # causal attention is never in the farther half of the window alone
    assert "taken by absolute value" in done.out
    assert {"date", "command", "commit", "versions", "hardware", "protocol"} <= record.keys()
    assert all((tmp_path / f"dilution.{ending}").stat().st_size for ending in ENDINGS)
    points = read_csv(tmp_path / "dilution.csv")
    assert len(points) == 2 * 4 * 101  # equal weights, the mean, two layers
    assert float(points[100]["l"]) == pytest.approx(1)


def test_a_model_folder_reads_a_text(cli, finished_run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on a mat and looked " * 20)
    asked = ("analyse", "dilution", finished_run / "final", "--text", text, "--length", "40", "--out", tmp_path)
    assert cli(*asked).code == 0
    [row] = json.loads((tmp_path / "dilution.json").read_text())["runs"]
    assert row["text"] == "text.txt"
    assert row["tokens"] == 8 * 40


def test_a_run_of_another_task_is_read_in_its_own_examples(cli, tiny, lra_store, tmp_path):
    run = tmp_path / "lra"
    overrides = [override for override in tiny if not override.startswith("data.")]
    assert cli("train", "lra/text", "--out", run, f"data.store={lra_store('lra/text')}", *overrides).code == 0
    assert cli("analyse", "dilution", run, "--length", "24", "--windows", "2", "--out", tmp_path).code == 0
    [row] = json.loads((tmp_path / "dilution.json").read_text())["runs"]
    assert row["texts"] == 2
    assert not row["causal"]
    assert cli("analyse", "attention", run, "--layer", "1", "--length", "16", "--out", tmp_path).code == 0


def test_attention_has_the_tokens_of_the_prompt(cli, finished_run, tmp_path):
    asked = ("analyse", "attention", finished_run, "--prompt", "a cat sat", "--layer", "2", "--head", "1")
    done = cli(*asked, "--out", tmp_path)
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "attention-run.json").read_text())
    assert record["tokens"] == [*"a␣cat␣sat"]
    assert [(layer["layer"], layer["mixer"]) for layer in record["layers"]] == [(2, "norm")]
    assert [sum(row) for row in record["layers"][0]["mean_share"]] == pytest.approx([1] * 9, abs=1e-4)
    points = read_csv(tmp_path / "attention-run.csv")
    assert {(point["layer"], point["head"]) for point in points} == {("2", "1")}
    assert all(int(point["key"]) <= int(point["query"]) for point in points)
    assert "␣" not in (tmp_path / "attention-run.png").name
    assert "<svg" in (tmp_path / "attention-run.svg").read_text()


def test_figures_are_drawn_from_records_and_what_is_missing_is_named(
    cli, finished_run, vanilla_run, tiny, store, tmp_path
):
    results = tmp_path / "results"
    done = cli("reproduce", "figures", "--results", results)
    assert done.code == 0
    for command in ("transnormer bench speed", "transnormer analyse dilution RUN", "transnormer analyse attention RUN"):
        assert command in done.out
    assert not (results / "figures").exists()

    runs = tmp_path / "runs"
    runs.mkdir()
    for run in (finished_run, vanilla_run):
        (runs / run.name).symlink_to(run)
    reformer = ("model.preset=reformer-tiny", f"data.store={store}", *tiny)
    assert cli("train", "demo", "--out", runs / "reformer", *reformer).code == 0
    done = cli("reproduce", "figures", "--results", results, "--runs", runs)
    assert done.code == 0, done.err
    assert f"left out of figures 2a and 2b: reformer, {runs / 'reformer' / 'final'}: layer 1 is reformer" in done.out
    for figure in ("figure2a", "figure2b"):
        assert all((results / "figures" / f"{figure}.{ending}").stat().st_size for ending in ENDINGS)
    areas = json.loads((results / "figures" / "figure2a.json").read_text())["areas"]
    assert areas.keys() == {"run", "vanilla"}
    assert {point["run"] for point in read_csv(results / "figures" / "figure2b.csv")} == {"run", "vanilla"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", "1"], "--length is 1"),
        (["--text", "nowhere.txt"], "nowhere.txt does not exist"),
    ],
)
def test_a_wrong_option_is_one_line(cli, finished_run, tmp_path, options, message):
    done = cli("analyse", "dilution", finished_run, *options, "--out", tmp_path)
    assert done.code in (2, 5)
    assert message in done.err
    assert not (tmp_path / "dilution.json").exists()


def test_what_cannot_be_looked_at_is_named(cli, finished_run, tiny, store, tmp_path):
    bench = tmp_path / "bench"
    bench.mkdir()
    (bench / "speed.json").write_text("{}")
    assert "neither a run folder nor a model folder" in cli("analyse", "dilution", bench).err
    assert "is a model without data" in cli("analyse", "dilution", finished_run / "final").err
    unknown = cli("analyse", "attention", finished_run, "--layer", "9")
    assert "--layer 9: the model has layers 1 to 2" in unknown.err
    assert "--head 0: the model has heads 1 to 2" in cli("analyse", "attention", finished_run, "--head", "0").err
    assert "two texts" in cli("analyse", "attention", finished_run, "--prompt", "a", "--text", "b").err
    assert "the prompt has 1 token\n" in cli("analyse", "attention", finished_run, "--prompt", "a").err
    assert "no.txt does not exist" in cli("analyse", "dilution", finished_run, "--text", "no.txt").err
    short = tmp_path / "short.txt"
    short.write_text("a")
    assert "too few" in cli("analyse", "dilution", finished_run, "--text", short).err
    run = tmp_path / "reformer"
    assert cli("train", "demo", "--out", run, "model.preset=reformer-tiny", f"data.store={store}", *tiny).code == 0
    done = cli("analyse", "dilution", run)
    assert done.code == 2
    assert "layer 1 is reformer, which has no attention matrix" in done.err
    assert "softmax" in done.err


def test_a_length_beyond_learned_positions_is_refused(cli, tiny, store, tmp_path):
    run = tmp_path / "learned"
    learned = ("model.position_embedding=learned", "model.max_position_embeddings=64")
    assert cli("train", "demo", "--out", run, f"data.store={store}", *learned, *tiny).code == 0
    done = cli("analyse", "dilution", run, "--length", "65")
    assert done.code == 2
    assert "--length is 65, but the model's positions end at 64" in done.err


def test_figures_take_no_settings_of_jobs(cli):
    assert "figures are drawn from records" in cli("reproduce", "figures", "--methods", "t2").err

"""What a runner finds from before: runs and records of the same jobs are taken up, those of others are left alone."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from reproduce_case import ReproduceCase

from transnormer.data.lra.prepare import prepare
from transnormer.train.run_folder import RunFolder


def test_a_run_of_other_settings_is_refused_and_left_alone(case: ReproduceCase) -> None:
    case.options = ["--methods", "t2", "--tasks", "text"]
    assert case.run() == 0, case.err
    before = sorted(path for path in case.folder.rglob("*"))
    assert case.run("train.steps=5", "optim.lr=0.5") == 2
    assert f"{case.runs / 'text-t2-42'} was made with another config" in case.err
    assert "optim.lr was 0.0001, is 0.5, train.steps was 4, is 5" in case.err
    case.runs.rename(case.folder / "elsewhere")
    assert case.run("train.steps=5") == 2
    assert f"{case.results / 'text-t2-42.json'} was made with another config: train.steps was 4, is 5" in case.err
    (case.folder / "elsewhere").rename(case.runs)
    assert sorted(path for path in case.folder.rglob("*")) == before
    (case.results / "text-t2-42.json").unlink()
    assert case.run("train.device=auto") == 0, "a finished run may have been made elsewhere"
    assert "jobs: 1 of 1 finished, 0 to run" in case.out
    assert case.record("text-t2-42")["jobs_at_once"] is None, "recorded by a runner that has not seen it run"
    (case.results / "text-t2-42.json").unlink()
    (case.runs / "text-t2-42" / "result.json").unlink()
    assert case.run("train.device=auto") == 2, "one that is to be resumed must be as it was"
    assert 'train.device was "cpu", is "auto"' in case.err
    assert case.run() == 0, case.err
    assert "text-t2-42: resumed" in case.out
    assert case.record("text-t2-42")["wall_steps_per_second"] is None, "it had only to be tested"


def test_a_finished_run_of_an_older_version_is_recorded(case: ReproduceCase) -> None:
    """Its config and its result have keys that are called otherwise now."""
    case.options = ["--methods", "t2", "--tasks", "text"]
    assert case.run() == 0, case.err
    made = case.record("text-t2-42")
    (case.results / "text-t2-42.json").unlink()
    run = RunFolder(case.runs / "text-t2-42")
    config = yaml.safe_load(run.config_file.read_text())
    config["train"]["speed"] = config["train"].pop("execution")
    config["protocol"], config["data"]["limit_examples"] = config.pop("lra")["protocol"], None
    run.config_file.write_text(yaml.safe_dump(config))
    result = json.loads(run.result_file.read_text())
    del result["execution"]
    run.result_file.write_text(json.dumps({**result, "speed": "graph"}))
    assert case.run() == 0, case.err
    assert "jobs: 1 of 1 finished, 0 to run" in case.out
    same = ("config_hash", "config", "test", "valid", "data", "changes")
    found = case.record("text-t2-42")
    assert {key: found[key] for key in same} == {key: made[key] for key in same}
    assert found["execution"] == "cuda_graph"


def test_other_data_are_not_taken_for_the_same(case: ReproduceCase, tmp_path: Path) -> None:
    case.options = ["--methods", "t2", "--tasks", "text"]
    assert case.run() == 0, case.err
    case.runs.rename(case.folder / "elsewhere")
    for part in ("train", "test"):
        (tmp_path / f"{part}.tsv").write_text("\n".join(f"{number % 2}\tanother {number}" for number in range(40)))
    case.data = prepare("lra/text", tmp_path / "other" / "text", source=tmp_path).parent
    assert case.run() == 2
    assert "text-t2-42.json was made from other data" in case.err
    (case.folder / "elsewhere").rename(case.runs)
    case.results.rename(case.folder / "other-results")
    assert case.run() == 5, "a finished run of other data must not be recorded as one of these"
    assert "text-t2-42 began with data of digest" in case.err
    assert not case.results.exists()


def test_records_of_other_generated_data_are_not_taken_for_the_same(case: ReproduceCase, tmp_path: Path) -> None:
    case.options = ["--methods", "t2", "--tasks", "listops"]
    case.data = prepare("lra/listops", tmp_path / "few" / "listops", limit=8, processes=1).parent
    assert case.run() == 0, case.err
    case.runs.rename(case.folder / "elsewhere")
    case.data = tmp_path  # has no store of the task: it would be generated, all of it
    assert case.run() == 2
    assert "listops-t2-42.json was made from other data: limit was 8, is null" in case.err


def test_a_table_is_of_one_setup(case: ReproduceCase) -> None:
    case.options = ["--methods", "t2", "--tasks", "text"]
    assert case.run() == 0, case.err
    before = {path: path.read_bytes() for path in case.results.iterdir()}
    case.options = ["--setup", "tuned", "--methods", "t1", "--tasks", "text"]
    assert case.run() == 2
    assert "has records of lra/*, these jobs are of lra/tuned/*" in case.err
    assert {path: path.read_bytes() for path in case.results.iterdir()} == before


def test_what_a_task_cannot_have_is_said_before_its_data_are_made(case: ReproduceCase, tmp_path: Path) -> None:
    case.options = ["--methods", "t2", "--tasks", "listops"]
    case.data = tmp_path  # has no store of the task: it would be generated
    assert case.run("model.embedding=number") == 2
    assert "the tokens of lra/listops are not amounts" in case.err
    assert not case.runs.exists()
    assert not case.results.exists()


def test_records_that_are_found_are_named_with_what_runs_them_anew(case: ReproduceCase) -> None:
    """As in a clone, which has the records of others and no runs."""
    assert case.run() == 0, case.err
    assert "of the finished are records" not in case.out
    case.runs.rename(case.folder / "elsewhere")
    for name, commit in (("text-t2-42", "0123456789abcdef"), ("text-vanilla-42", None)):
        path = case.results / f"{name}.json"
        path.write_text(json.dumps({**case.record(name), "commit": commit}))
    assert case.run() == 0, case.err
    assert "jobs: 2 of 2 finished, 0 to run" in case.out
    assert (
        f"2 of the finished are records in {case.results}, of commit 0123456 (1), of an unknown commit (1)" in case.out
    )
    assert "to run them anew, give other folders: --results DIR --runs DIR" in case.out
    assert case.run("--results", str(case.folder / "mine"), "--runs", str(case.folder / "my-runs")) == 0, case.err
    assert "of the finished are records" not in case.out
    assert "text-t2-42: started" in case.out

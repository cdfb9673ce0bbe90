"""The Long-Range Arena table, from hand-made records: every number in its place, every mark, dashes for the rest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from record_case import PUBLISHED, REGENERATED, STAND_IN, make_record

from transnormer.experiments.experiment import Selection, plan
from transnormer.experiments.paper.lra import PAPER, TABLE, TASKS, LongRangeArena, locate, summary
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.recording import check_record
from transnormer.experiments.table import cost
from transnormer.models.presets import METHODS

ROOT = Path(__file__).resolve().parents[3]
lra_page = LongRangeArena().page


def record(task: str, method: str, percent: float, seed: int = 42, **changes: Any) -> Record:
    return make_record(task, method, seed, percent / 100, **changes)


def figures(table: str) -> dict[str, list[str]]:
    """The columns of each method, without the intervals."""
    table = re.sub(r" \[[\d., ]+\]", "", table)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {row[0]: row[1:] for row in rows if not row[0].startswith("---")}


def test_ours_beside_the_papers() -> None:
    accuracies = dict(zip(TASKS, (42.0, 73.0, 50.0, 78.0, 84.0), strict=True))
    records = [record(task, "t2", accuracy) for task, accuracy in accuracies.items()]
    records += [record("listops", "vanilla", 36.125), record("listops", "linear_elu", 37.0)]
    table = figures(TABLE.markdown(records))
    assert table["method"][:4] == ["listops", "paper", "text", "paper"]
    assert table["method"][-2:] == ["mean of 5", "paper"]
    assert table["t2"] == [
        *("**42.00**", "41.60", "**73.00**", "72.20", "**50.00**", "49.60", "**78.00**", "76.80"),
        *("**84.00**", "83.82", "65.40", "64.80"),
    ]
    assert table["vanilla"][:4] == ["**36.12**", "38.37", "–", "61.95"], "twelve examples tell nobody apart"
    assert table["vanilla"][-2:] == ["–", "57.37"], "a mean of some tasks is no mean"
    assert table["linear_elu (not in the paper)"] == ["**37.00**", *["–"] * 11]
    assert not any(row.startswith("llama") for row in table), "neither in the paper nor run"
    assert table["flash"][0] == "–"


def test_a_summary_has_the_methods_that_ran_and_means_of_complete_rows(tmp_path: Path) -> None:
    assert summary(tmp_path) is None
    accuracies = {"listops": 40.0, "text": 80.0, "image": 50.0, "pathfinder": 70.0}
    (tmp_path / "lra").mkdir()
    for made in [*(record(task, "t2", percent) for task, percent in accuracies.items()), record("text", "t1", 66.5)]:
        made.write(tmp_path / "lra")
    text = summary(tmp_path)
    assert text is not None
    assert "| the paper | t2 | 41.60 | 72.20 | 49.60 | 76.80 | 83.82 | 60.05 |" in text
    assert "| skyformer | t2 | 40.00 | 80.00 | 50.00 | 70.00 | – | 60.00 |" in text
    assert "| skyformer | t1 | – | 66.50 | – | – | – | – |" in text
    record("text", "t2", 80.0, changes={"seed": 1}).write(tmp_path / "lra")
    assert "70.00 | – | 60.00‡ |" in (summary(tmp_path) or ""), "a mean has the marks of what is in it"


def test_the_mean_over_the_papers_own_data() -> None:
    records = [record(task, "t2", 60.0, data=STAND_IN if task == "retrieval" else PUBLISHED) for task in TASKS]
    table = figures(TABLE.markdown(records))
    assert table["method"][-2:] == ["mean without retrieval", "paper"]
    assert table["t2"][-4:] == ["60.00†", "64.80", "60.00", "60.05"]
    assert table["t2"][8] == "**60.00†**"


def test_seeds_are_averaged() -> None:
    page = lra_page([record("text", "t2", accuracy, seed) for seed, accuracy in ((1, 70.0), (2, 72.0), (3, 74.0))])
    assert "**72.00 ± 2.00**" in page
    assert "over the seeds 1, 2, 3" in page
    assert "One seed: 7." in lra_page([record("text", "t2", 70.0, 7)])


def test_what_cannot_be_compared_is_marked_and_explained() -> None:
    page = lra_page(
        [
            record("retrieval", "t2", 70.0, data=STAND_IN),
            record("text", "t2", 60.0, changes={"train.steps": 100}),
            record("listops", "t2", 40.0, data=REGENERATED),
            record("image", "t2", 40.0, data={**STAND_IN, "meta": {"limit": 3000, "generated": {"seed": 0}}}),
        ]
    )
    assert "70.00†" in page
    assert "60.00‡" in page
    assert "† retrieval: not the published data, never compare with it (train has 34,000 of 147,086)." in page
    assert "† image: not the published data, never compare with it (at most 3,000 examples of each split)." in page
    assert "listops: generated anew by the published procedure, seed 0." in page
    assert "‡ differs from the recipe: train.steps=100." in page


def test_a_checkpoint_chosen_on_the_test_split_is_named() -> None:
    page = lra_page([record("text", "t2", 60.0, protocol="lra_compat: pixels masked")])
    assert "text under lra_compat: the checkpoint that is best on the test split" in page
    assert "lra_compat" not in lra_page([record("image", "t2", 60.0, protocol="lra_compat: pixels masked")])


def test_cost() -> None:
    on_cpu = record("text", "t1", 60.0, device="cpu", precision="float32", jobs_at_once=None, peak_memory_bytes=None)
    records = [record("listops", "t2", 40.0), record("image", "t2", 40.0, resumed_after=300), on_cpu]
    table = figures(cost([TABLE], records))
    assert table["t2"] == ["412, 1.50, 1,234, 4", "–", "412, 1.50, 1,234, 4§", "–", "–"]
    assert table["t1"][1] == "412, –, 1,234, ?"
    assert list(table) == ["steps/s, GiB, s, at once", "t1", "t2"], "methods that did not run have no cost"
    assert "Measured on: A GPU, bf16; a processor, float32." in lra_page(records)
    assert "§ Stopped and continued" in lra_page(records)
    assert "§" not in lra_page([record("listops", "t2", 40.0)])


def test_an_empty_folder_and_another_method(tmp_path: Path) -> None:
    assert read_records(tmp_path / "absent") == []
    page = lra_page([])
    assert "| t2 | – | 41.60 |" in page
    assert figures(TABLE.markdown([record("text", "mine", 99.0)]))["mine (not in the paper)"][2] == "**99.00**"


@pytest.mark.parametrize("folder", ["lra", "lra-tuned"])
def test_published_pages_are_made_of_their_records(folder: str) -> None:
    results = ROOT / "results" / folder
    assert lra_page(read_records(results)) == (results / "README.md").read_text(), "run `make readme`"


@pytest.mark.parametrize("setup", ["skyformer", "tuned"])
def test_published_records_are_of_the_jobs_that_the_recipes_describe(setup: str) -> None:
    """So that nobody who asks for them has to run them again."""
    arena = LongRangeArena()
    results = ROOT / "results" / arena.folder(setup)
    for found in read_records(results):
        method, task = locate(found) or ("", "")
        selection = Selection([method], [task], [found.seed], setup, overrides=["data.source=somewhere"])
        (job,) = plan(arena, selection, Path("runs"))
        check_record(found, job, results / f"{found.name}.json", None)


def test_the_papers_table() -> None:
    """Its averages as printed, and a row for every method of the zoo."""
    printed = {"vanilla": 57.37, "kernelized": 58.56, "nystrom": 58.93, "linformer": 54.69, "informer": 53.73}
    printed |= {"performer": 58.00, "reformer": 58.99, "bigbird": 59.05, "skyformer": 59.39, "long_short": 61.24}
    printed |= {"cosformer": 62.11, "flash_quad": 60.18, "flash": 61.31, "t1": 63.71, "t2": 64.80}
    assert printed.keys() == {method for method, figures in PAPER.items() if figures}
    for method, average in printed.items():
        assert sum(PAPER[method].values()) / 5 == pytest.approx(average, abs=0.011)
        assert PAPER[method].keys() == set(TASKS)
    assert PAPER.keys() == METHODS.keys()


def test_bold_is_what_intervals_cannot_tell_from_the_highest() -> None:
    many = {"test": 10_000, "valid": 100}
    scores = {"t2": 73.0, "vanilla": 72.0, "performer": 70.0}
    records = [record("text", method, percent, examples=many) for method, percent in scores.items()]
    column = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[3] for line in TABLE.markdown(records).splitlines()[2:]
    }
    assert column["t2"] == "**73.00 [72.1, 73.9]**"
    assert column["vanilla"] == "**72.00 [71.1, 72.9]**"
    assert column["performer"] == "70.00 [69.1, 70.9]"
    # Over several seeds it is their deviation.
    records += [record("text", "vanilla", 72.01, seed=43, examples=many)]
    column = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[3] for line in TABLE.markdown(records).splitlines()[2:]
    }
    assert column["vanilla"] == "72.00 ± 0.01"


def test_older_records_are_marked_where_there_are_newer_ones() -> None:
    segments = [{"after": 0, "date": None, "command": ["transnormer"], "commit": "0" * 40}]
    older, newer = record("text", "t2", 73.0), record("text", "vanilla", 62.0, segments=segments)
    assert "73.00°" in lra_page([older, newer])
    assert "° is a record of an older form" in lra_page([older, newer])
    assert "°" not in lra_page([older])
    assert "All records are of an older form" in lra_page([older])
    assert "older form" not in lra_page([newer])


def test_what_is_far_from_the_paper_in_its_own_set_up_is_listed() -> None:
    stand_in = record("retrieval", "t2", 60.0, data=STAND_IN)  # 23.82 points, but never to be compared
    page = lra_page([record("text", "t2", 60.0), record("listops", "t2", 41.0), stand_in])
    assert "More than 3 points from the paper's figure: t2 on text -12.20." in page


def five(method: str, percents: tuple[float, ...], **changes: Any) -> list[Record]:
    """Records of a method on all tasks, one accuracy for each seed."""
    return [record(task, method, percent, seed, **changes) for task in TASKS for seed, percent in enumerate(percents)]


def test_who_has_the_highest_mean_is_said_by_the_spread_of_seeds() -> None:
    def said(*records: list[Record]) -> str:
        found = re.search(r"Highest mean.*?\.", lra_page([each for some in records for each in some]))
        return found[0] if found else ""

    t2, stand_in = five("t2", (60.0, 61.0)), record("retrieval", "t2", 99.0, data=STAND_IN)
    assert said(t2) == "", "there is nobody beside it"
    assert said(five("t2", (60.5,)), five("t1", (60.0,))).endswith("t2, then t1; one seed, of unknown spread.")
    assert "t2, not told apart from it: t1, by" in said(t2, five("t1", (60.1,)))
    assert "t2, apart from all others, by" in said(t2, five("t1", (59.0,)))
    assert figures(TABLE.markdown(t2))["t2"][-2:] == ["60.50 ± 0.32", "64.80"]
    four = [each for each in (*t2, *five("t1", (59.0,))) if not each.task.endswith("retrieval")]
    assert said([*four, stand_in]).startswith("Highest mean without retrieval: t2")


def test_steps_without_an_update_are_told_of() -> None:
    norms = {"steps": 5, "mean": 1.0, "relative_deviation": 0.5}
    records = [
        record("text", method, 60.0, gradient_norm={**norms, "nonfinite": n}) for method, n in (("t2", 0), ("t1", 7))
    ]
    assert "not finite: text-t1-42 7." in lra_page(records)

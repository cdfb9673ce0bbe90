"""The claims of the paper against records made by hand: what each verdict needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from record_case import PUBLISHED, STAND_IN, make_record, record_tree

from transnormer.experiments.paper import experiment, lra, speed
from transnormer.experiments.record import Record
from transnormer.experiments.table import Figure, Table, score
from transnormer.report.claims import paper_claims
from transnormer.report.page import Claim
from transnormer.report.table_view import TableView

ARENA = "On the Long-Range Arena TransNormer is better than all others in the mean"
TRAINS = "TransNormer trains faster than all others from 1K to 5K tokens"
METHODS = [method for method, tasks in lra.PAPER.items() if tasks]


def arena(accuracies: dict[str, float], seeds: tuple[int, ...] = (1, 2, 3), setup: str = "skyformer", **changes: Any):
    """A view on records in which seeds differ by a thousandth."""
    records = [
        make_record(task, method, seed, accuracy + seed / 1000, **changes)
        for method, accuracy in accuracies.items()
        for task in lra.TASKS
        for seed in seeds
    ]
    return TableView(experiment("lra"), setup, lra.TABLE, records)


def claim(text: str, views: list[TableView], speeds: dict[str, Any] | None = None) -> Claim:
    return {claim.text: claim for claim in paper_claims(views, speeds or {})}[text]


TUNED = "in set-up tuned, whose settings were chosen for T2 alone"
ALL = {method: 0.6 if method in ("t1", "t2") else 0.5 for method in METHODS}


def test_without_records_nothing_is_tested() -> None:
    claims = paper_claims([TableView(experiment("lra"), "skyformer", lra.TABLE, [])], {})
    assert len(claims) == 8
    assert {claim.in_words for claim in claims} == {"not tested"}


def test_the_arena_holds_with_all_methods_seeds_and_data() -> None:
    found = claim(ARENA, [arena(ALL)])
    assert (found.verdict, found.in_words, found.caveats) == ("holds", "holds", ())
    assert [link.href for link in found.links] == ["lra.html"]


@pytest.mark.parametrize(
    ("view", "words", "caveats"),
    [
        (arena(ALL, seeds=(1,)), "holds, with reservations", ("with one seed",)),
        (arena(ALL, data=STAND_IN), "holds on stand-in data", ("on stand-in data",)),
        (arena(ALL, setup="authors"), "holds, with reservations", ("in set-up authors",)),
        (arena(ALL, setup="tuned"), "holds, not on equal terms", (TUNED, "not on equal terms")),
        (arena({**ALL, "t1": 0.4}, setup="tuned"), "holds in part, not on equal terms", (TUNED, "not on equal terms")),
        (arena({"t2": 0.6, "vanilla": 0.5}), "holds, with reservations", ("with 1 of 13 rows of the table",)),
        (arena({**ALL, "t1": 0.4}), "holds in part", ()),
        (arena({**ALL, "t1": 0.4, "t2": 0.4}), "does not hold", ()),
        (arena({"t2": 0.6}), "not tested", ()),
    ],
    ids=["seed", "stand-in", "setup", "unequal", "unequal-part", "methods", "part", "fails", "alone"],
)
def test_what_keeps_the_arena_from_holding(view: TableView, words: str, caveats: tuple[str, ...]) -> None:
    found = claim(ARENA, [view])
    assert (found.in_words, found.caveats) == (words, caveats)


def test_a_task_with_stand_in_data_alone_is_left_out_of_the_mean() -> None:
    view = arena(ALL)
    stand_ins = [make_record("retrieval", method, 1, 0.99, data=STAND_IN) for method in METHODS if method not in "t1t2"]
    others = [record for record in view.records if not record.task.endswith("retrieval")]
    found = claim(ARENA, [replace(view, records=[*others, *stand_ins])])
    assert (found.in_words, found.caveats) == ("holds, with reservations", ("in the mean without retrieval",))


def test_the_arena_is_not_comparable_where_a_task_has_two_data_sets() -> None:
    other = [make_record("text", "performer", 4, 0.5, data={**PUBLISHED, "digest": "1"})]
    view = arena(ALL)
    found = claim(ARENA, [replace(view, records=[*view.records, *other])])
    assert (found.in_words, found.caveats) == ("not comparable", ("on several data sets",))
    assert found.reasons == ["text: records of 2 data sets, which must not be compared"]


def test_the_papers_setup_decides_where_it_ran() -> None:
    found = claim(ARENA, [arena(ALL), arena({**ALL, "t1": 0.4, "t2": 0.4}, setup="tuned")])
    assert found.in_words == "holds"
    assert found.reasons[0].startswith("Long-Range Arena: t1 60.20 ± 0.04 > vanilla 50.20 ± 0.04: yes")
    assert any("set-up tuned: t1 40.20 ± 0.04 > vanilla" in reason for reason in found.reasons)


def test_a_setup_on_equal_terms_decides_before_one_that_is_not() -> None:
    found = claim(ARENA, [arena(ALL, setup="tuned"), arena({**ALL, "t1": 0.4, "t2": 0.4}, setup="fair")])
    assert (found.in_words, found.caveats) == ("does not hold", ("in set-up fair",))


def speeds(t2: float, others: float, methods: list[str]) -> dict[str, Any]:
    rates = {"t2": t2, **dict.fromkeys(methods, others)}
    rows = [
        {"method": method, "length": length, "train_steps_per_second": rate}
        for method, rate in rates.items()
        for length in speed.LENGTHS
    ]
    rows.append({"method": "vanilla", "length": 9999})  # did not fit: no rate
    return {"compiled": {"settings": {"lengths": [*speed.LENGTHS, 9999]}, "rows": rows}}


def test_speed() -> None:
    rivals = [method for method in speed.PAPER["train"] if method not in ("t1", "t2")]
    assert claim(TRAINS, [], speeds(3.0, 2.0, rivals)).in_words == "holds"
    assert claim(TRAINS, [], speeds(1.0, 2.0, rivals)).in_words == "does not hold"
    few = claim(TRAINS, [], speeds(3.0, 2.0, rivals[:2]))
    assert few.caveats == ("compiled: against 2 of 9 methods",)
    assert claim(TRAINS, []).in_words == "not tested"
    # What the paper did not time, such as linear_elu, is no rival.
    assert claim(TRAINS, [], speeds(1.0, 2.0, ["linear_elu"])).in_words == "not tested"


def language(perplexity: float) -> list[Record]:
    def record(row: str, value: float) -> Record:
        scores = {"step": 1, "metrics": {"perplexity": value}}
        of_a_model = {"task": "causal_lm", "preset": f"{row}-lm", "recipe": "lm/wikitext103", "valid": scores}
        return Record.model_validate({**record_tree("any", row), **of_a_model, "test": scores})

    return [record("t2", perplexity), record("vanilla", 31.01)]


@pytest.mark.parametrize(
    ("perplexity", "words"),
    [(31.3, "holds, with reservations"), (31.5, "does not hold"), (float("nan"), "does not hold")],
)
def test_perplexity_is_equal_up_to_the_papers_own_factor(perplexity: float, words: str) -> None:
    table = experiment("lm").tables[0]
    found = claim(
        "TransNormer has the perplexity of a vanilla transformer",
        [TableView(experiment("lm"), "wikitext103", table, language(perplexity))],
    )
    assert found.in_words == words


def test_a_part_of_glue_is_said_to_be_one() -> None:
    def record(row: str, value: float) -> Record:
        scores = {"step": 1, "metrics": {"accuracy": value}}
        of_a_job = {
            "task": "glue/sst2",
            "preset": f"{row}-mlm",
            "recipe": "glue/sst2",
            "config": {"optim": {"lr": 1e-5}},
        }
        return Record.model_validate({**record_tree("sst2", row), **of_a_job, "valid": scores, "test": None})

    view = TableView(
        experiment("glue"), "wikitext103", experiment("glue").tables[0], [record("t1", 0.9), record("vanilla", 0.8)]
    )
    found = claim("Fine-tuned on GLUE, T1 is better than a vanilla transformer", [view])
    assert found.reasons == ["t1 90.00 > vanilla 80.00: yes"]
    assert found.caveats == ("on 1 of 7 figures", "with one seed")


def test_every_other_table_claims_its_order() -> None:
    """Those to come, too: what an experiment shows under a heading beside the paper's numbers."""
    other, paper = experiment("lra"), {"t2": 3.0, "t1": 2.0, "vanilla": 1.0}
    other.name = "ablations"  # type: ignore[misc]
    table = Table("order", "", list(paper), list(paper), {"text": Figure("text", score, paper, "higher")}, lra.locate)
    records = [
        make_record("text", row, seed, value + seed / 1000)
        for row, value in (("t2", 0.5), ("t1", 0.3))
        for seed in (1, 2)
    ]
    found = claim("The paper's order of rows: Long-Range Arena", [TableView(other, "skyformer", table, records)])
    assert found.said == "Best first, text: t2 3.00 > t1 2.00 > vanilla 1.00."
    assert found.in_words == "holds, with reservations"
    assert found.caveats == ("with 2 of 3 rows of the table",)


def dilution(**areas: float) -> dict[str, Any]:
    mixers = {"linear": ["linear_elu"], "vanilla": ["softmax"], "t2": ["diag", "norm"], "mixed": ["norm", "softmax"]}
    return {
        "runs": [
            {"mean": {"area": area}, "layers": [{"mixer": m} for m in mixers[name]], "causal": True, "sha256": "5e"}
            for name, area in areas.items()
        ]
    }


@pytest.mark.parametrize(
    ("record", "words", "caveats"),
    [
        (None, "not tested", ()),
        (dilution(linear=0.5, mixed=0.9), "not tested", ()),
        (dilution(linear=0.5, vanilla=0.8, t2=0.7), "holds, with reservations", ("with one seed",)),
        (dilution(linear=0.5, t2=0.7), "holds, with reservations", ("with one of two comparisons", "with one seed")),
        (dilution(linear=0.75, vanilla=0.8, t2=0.7), "holds in part", ("with one seed",)),
        (dilution(linear=0.9, vanilla=0.8, t2=0.7), "does not hold", ("with one seed",)),
    ],
)
def test_dilution(record: dict[str, Any] | None, words: str, caveats: tuple[str, ...]) -> None:
    found = next(
        claim for claim in paper_claims([], {}, record) if claim.text.startswith("Linear attention is diluted")
    )
    assert (found.in_words, found.caveats) == (words, caveats)


def test_dilution_on_other_text_says_on_which_and_how_deep_the_models_are() -> None:
    record = dilution(linear=0.5, vanilla=0.8, t2=0.7)
    for row in record["runs"]:
        row["data"] = {"digest": "5e", "meta": {"corpus": "python"}}
    caveats = {claim.text[:16]: claim.caveats for claim in paper_claims([], {}, record)}["Linear attention"]
    assert caveats == ("on python, in models of 1 and 2 layers", "with one seed")
    for row in record["runs"]:
        row["data"]["meta"]["corpus"] = "wikitext103"
    caveats = {claim.text[:16]: claim.caveats for claim in paper_claims([], {}, record)}["Linear attention"]
    assert caveats == ("with one seed",)


def test_dilution_of_causal_models_is_compared_with_that_of_causal_models() -> None:
    record = dilution(linear=0.65, vanilla=0.8)
    record["runs"] += [{**row, "causal": False} for row in dilution(linear=0.55, vanilla=0.6)["runs"]]
    found = next(claim for claim in paper_claims([], {}, record) if claim.text.startswith("Linear attention is"))
    assert found.reasons == ["vanilla, causal 0.80 > 1+elu, causal 0.65: yes", "vanilla 0.60 > 1+elu 0.55: yes"]
    record["runs"][0]["sha256"] = "another"
    found = next(claim for claim in paper_claims([], {}, record) if claim.text.startswith("Linear attention is"))
    assert found.caveats == ("on different texts", "with one seed")

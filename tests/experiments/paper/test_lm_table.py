"""The table of language models: hand-made records with figures to reckon by hand, and jobs run from text to page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from record_case import PUBLISHED, record_tree
from reproduce_case import TINY, ReproduceCase

from transnormer.config.load import load_config
from transnormer.data.prepare import prepare
from transnormer.errors import ConfigError
from transnormer.experiments.experiment import Selection, plan
from transnormer.experiments.job import Job
from transnormer.experiments.paper.lm import CORPORA, PAPER, LanguageModels, headline, locate, summary
from transnormer.experiments.record import Record, read_records
from transnormer.experiments.table import rank_correlation
from transnormer.models.presets import preset

SIZE = ["model.num_hidden_layers=2", "model.num_attention_heads=2", "data.sequence_length=32"]
BITS = {"t2": (1.25, 1.3), "t1": (1.0, 1.1)}
STAND_IN = {"corpus": "enwiki", "stands_in_for": "WikiText-103", "limit_bytes": 5000}


def record(method: str, valid: float, test: float, seed: int = 0, corpus: str = "enwiki", **changes: Any) -> Record:
    name = "bits_per_byte" if corpus == "enwik8" else "perplexity"
    fields = {
        "name": f"{corpus}-{method}-{seed}",
        "task": "causal_lm",
        "preset": f"{method}-lm",
        "recipe": f"lm/{corpus}",
        "primary_metric": "perplexity",
        "higher_is_better": False,
        "valid": {"step": 3, "metrics": {"perplexity": 9.0, name: valid}},
        "test": {"step": 3, "metrics": {"perplexity": 9.0, name: test}},
        "data": {"label": "stand-in", "digest": "0", "sizes": {}, "meta": STAND_IN},
        "parameters": 44_650_000,
        "tokens_per_second": 1234567.8,
        "jobs_at_once": 1,
    }
    return Record.model_validate({**record_tree("text", method, seed), **fields, **changes})


def cells(page: str, row: str, table: int = 0) -> list[str]:
    lines = [line for line in page.splitlines() if line.startswith(f"| {row} |")]
    return [cell.strip() for cell in lines[table].strip("|").split("|")][1:]


def planned(*methods: str, setup: str = "enwiki", overrides: tuple[str, ...] = ()) -> list[Job]:
    selection = Selection(methods, [setup], [0], setup, overrides=["data.source=somewhere", *overrides])
    return plan(LanguageModels(), selection, Path("runs"))


def test_perplexities_and_ratios_beside_the_papers() -> None:
    records = [record("vanilla", 50.0, 60.0), record("t2", 49.0, 61.5), record("llama", 45.0, 54.0)]
    page = LanguageModels().page(records)
    assert cells(page, "method") == [
        *("valid", "paper", "test", "paper", "valid / vanilla", "paper", "test / vanilla", "paper"),
        *("M parameters", "paper", "tokens/s", "GiB"),
    ]
    # 49 / 50 and 61.5 / 60; the paper's 29.57 / 29.63 and 31.01 / 31.01.
    assert cells(page, "t2") == [
        *("49.00†", "29.57", "61.50†", "31.01", "0.980", "0.998", "1.025", "1.000"),
        *("44.65", "155.99", "1,234,568", "1.50"),
    ]
    assert cells(page, "vanilla")[4:8] == ["1.000"] * 4
    assert cells(page, "performer")[:8] == ["–", "75.29", "–", "77.65", "–", "2.541", "–", "2.504"]
    assert cells(page, "llama (not in the paper)")[:5] == ["**45.00†**", "–", "**54.00†**", "–", "**0.900**"]
    assert (
        "† enwiki: not the published data, never compare with it (enwiki stands in for WikiText-103, "
        "the first 5,000 bytes of train)." in page
    )
    assert "‡" not in page, "a row is not a difference from the recipe"
    assert "‡ differs from the recipe: train.steps=5" in LanguageModels().page(
        [record("t2", 1.0, 1.0, changes={"train.steps": 5})]
    )
    steps = [
        record("t2", 1.0, 1.0, changes={"train.steps": 5, "optim.lr": 1}),
        record("t1", 1.0, 1.0, changes={"optim.lr": 1}),
    ]
    assert "‡ differs from the recipe: optim.lr=1, train.steps=5 (t2)." in LanguageModels().page(steps)
    assert "Rank correlation" not in page, "of two methods that the paper has there is no order to speak of"
    assert "–" in cells(LanguageModels().page([record("t2", 1.0, 1.0)]), "t2")[4], "no vanilla, no ratio"


def test_seeds_are_averaged_before_they_are_divided() -> None:
    records = [record("vanilla", 50.0, 50.0, 0), record("vanilla", 54.0, 50.0, 1)]
    records += [record("t2", 40.0, 50.0, 0), record("t2", 44.0, 50.0, 1)]
    page = LanguageModels().page(records)
    spread = math.sqrt(8)
    assert cells(page, "t2")[0] == f"**42.00 ± {spread:.2f}†**"
    assert cells(page, "t2")[4] == f"**{42 / 52:.3f} ± {spread / 52:.3f}**"
    assert cells(page, "t2")[8] == "44.65", "parameters have no spread"
    assert "over the seeds 0, 1" in page


def test_only_jobs_that_ran_alone_have_a_speed() -> None:
    alone = record("t2", 40.0, 50.0, 0)
    shared = record("t2", 44.0, 50.0, 1, jobs_at_once=2, tokens_per_second=600_000, seconds=1e6)
    assert cells(LanguageModels().page([alone, shared]), "t2")[10] == "1,234,568"
    assert cells(LanguageModels().page([shared]), "t2")[10] == "–"
    cost = LanguageModels().page([alone, shared])
    assert f"| t2 | {alone.steps_per_second:,.0f}, " in cost[cost.index("## Cost") :]
    assert cells(LanguageModels().page([alone, shared]), "t2")[0].startswith("**42.00 ± "), "but they have a score"


def test_the_readme_has_the_main_figures(tmp_path: Path) -> None:
    assert headline(tmp_path) is None
    (tmp_path / "lm").mkdir()
    for each in (record("vanilla", 50.0, 60.0), record("t2", 49.0, 61.5), record("t1", 1.0, 1.0, corpus="enwik8")):
        each.write(tmp_path / "lm")
    text = headline(tmp_path) or ""
    assert cells(text, "method") == ["valid", "valid / vanilla", "paper", "tokens/s", "GiB"]
    assert cells(text, "t2") == ["**49.00†**", "**0.980**", "0.998", "1,234,568", "1.50"]


def test_the_order_of_the_methods_is_compared_with_the_papers() -> None:
    same = [record(method, 2 * valid, 2 * test) for method, (valid, test, _) in PAPER.items()]
    page = LanguageModels().page(same)
    assert "with the paper's order, valid: 1.00 (t2 < vanilla < t1 < flash_quad < long_short" in page
    assert "with the paper's order, test: 1.00" in page
    other = [record("vanilla", 3.0, 1.0), record("t1", 2.0, 1.0), record("t2", 1.0, 1.0), record("performer", 2.5, 1.0)]
    # Ours t2 t1 performer vanilla against the paper's t2 vanilla t1 performer: 1 - 6 (0 + 1 + 1 + 4) / (4 (16 - 1)).
    assert "order, valid: 0.40 (" in LanguageModels().page([*other, record("llama", 0.5, 0.5)])
    assert "order, test" not in LanguageModels().page(other), "all are equal"
    mixed = [*same, record("t1", 2.0, 1.0, seed=1, data={**PUBLISHED, "digest": "1"})]
    assert "order, valid" not in LanguageModels().page(mixed), "there is none between different data"


def test_rank_correlation() -> None:
    assert rank_correlation([1, 2, 3], [10, 100, 1000]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [9, 4, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None
    # Ranks 1 2.5 2.5 4 against 1 2 3 4: Pearson's of these.
    assert rank_correlation([5, 6, 6, 7], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


def test_each_corpus_has_a_table_and_bytes_have_bits() -> None:
    published = {"label": "enwik8", "digest": "0", "sizes": {}, "meta": {"corpus": "enwik8"}}
    records = [record("t2", 49.0, 61.5)]
    records += [record(row, *bits, corpus="enwik8", data=published) for row, bits in BITS.items()]
    page = LanguageModels().page(records)
    assert page.index("## enwiki\n") < page.index("## enwik8\n") < page.index("## Cost\n")
    assert "## wikitext103" not in page
    assert cells(page, "t2", 1)[:4] == ["1.250", "1.300", "–", "–"]
    assert cells(page, "t1")[:2] == ["–", "29.89"]
    assert cells(page, "t1", 1)[:2] == ["**1.000**", "**1.100**"]
    assert "| steps/s, GiB, s, at once | enwiki | enwik8 |" in page
    assert "vanilla" not in page[page.index("## enwik8") :].replace("/ vanilla", ""), "neither in the paper nor run"
    assert "## wikitext103" in LanguageModels().page([])


def test_what_is_of_another_experiment_is_left_out(tmp_path: Path) -> None:
    assert locate(record("t2", 1.0, 1.0)) == ("t2", "enwiki")
    assert locate(record("t2", 1.0, 1.0, preset="t2-tiny")) is None
    assert locate(record("t2", 1.0, 1.0, recipe="lm/text")) is None
    assert locate(record("t2", 1.0, 1.0, recipe=None)) is None
    assert summary(tmp_path) is None
    (tmp_path / "lm").mkdir()
    record("t2", 49.0, 61.5).write(tmp_path / "lm")
    assert "| 49.00†" in (summary(tmp_path) or "").replace("**", "")


def test_the_jobs_of_every_method() -> None:
    rows = LanguageModels.rows
    assert rows[:3] == ("t2", "vanilla", "llama")
    assert set(rows) == {*PAPER, "llama"}
    jobs = planned(*rows)
    assert [job.name for job in jobs] == [f"enwiki-{row}-0" for row in rows]
    first = jobs[0].config
    for job, row in zip(jobs, rows, strict=True):
        assert job.config == first.model_copy(
            update={"model": first.model.model_copy(update={"preset": f"{row}-lm"})}
        ), "a row changes its preset alone: data, their order and the optimizer are those of all"
    assert (first.seed, first.train.steps, first.train.batch_size * first.data.sequence_length) == (0, 2750, 65_536)
    for setup in CORPORA:
        assert LanguageModels().folder(setup) == "lm"
        assert load_config(f"lm/{setup}").task == "causal_lm"


def test_methods_without_feed_forward_layers_keep_their_ratio_of_layers() -> None:
    def layers(*overrides: str) -> list[int]:
        jobs = planned("t2", "flash", setup="enwik8", overrides=overrides)
        return [preset(job.config.model.preset, **job.config.model.changes()).num_hidden_layers for job in jobs]

    assert layers() == [12, 20]
    assert layers("model.num_hidden_layers=4") == [4, 4]


def test_missing_data_says_where_to_get_them() -> None:
    for setup, words in {
        "wikitext103": ["wikitext-103-v1.zip", "sha256 242ba0f2", "wiki.train.tokens", "wikitext-103-raw-v1.zip"],
        "enwik8": ["mattmahoney.net/dc/enwik8.zip", "a1fa5ffddb56f4953e226637dabbb36a"],
        "enwiki": ["train.txt and valid.txt"],
    }.items():
        with pytest.raises(ConfigError, match=f"data prepare {setup} --source PATH --out data/{setup}") as raised:
            plan(LanguageModels(), Selection(["t2"], [setup], [0], setup), Path("runs"))
        assert all(word in str(raised.value) for word in words)


def test_from_text_to_the_page(case: ReproduceCase, tmp_path: Path) -> None:
    """Two methods on a few articles: one record each with both splits, and the ratios of the page follow from them."""
    source = tmp_path / "enwiki"
    source.mkdir()
    article = " = Title {0} = \n" + "Some words about number {0}, and some more.\n = = Section = = \nIts text.\n" * 3
    (source / "train.txt").write_text("".join(article.format(number) for number in range(30)))
    (source / "valid.txt").write_text("".join(article.format(number) for number in range(30, 33)))
    case.data = tmp_path / "stores"
    prepare("enwiki", case.data / "enwiki", tokenizer="byte", source=source)
    case.table, case.options = "lm", ["--setup", "enwiki", "--methods", "t2,vanilla", "--seeds", "0", *SIZE]
    assert case.run("--dry-run") == 0
    assert "jobs: 0 of 2 finished, 2 to run" in case.out
    assert "enwiki-t2-0: transnormer train lm/enwiki model.preset=t2-lm " in case.out
    assert not case.runs.exists()
    assert not case.results.exists()
    assert case.run() == 0
    records = {found.preset: found for found in read_records(case.results)}
    assert sorted(path.name for path in case.results.iterdir()) == [
        *("README.md", "enwiki-t2-0.json", "enwiki-vanilla-0.json")
    ]
    ours, vanilla = records["t2-lm"], records["vanilla-lm"]
    assert ours.data.label == "stand-in"
    assert ours.data.digest == vanilla.data.digest
    assert ours.changes["train.steps"] == 4
    overridden = {override.partition("=")[0] for override in [*TINY, *SIZE]} - {"train.device"}
    assert ours.changes.keys() == vanilla.changes.keys() == overridden, "not what a row or a store is"
    run = json.loads((case.runs / "enwiki-t2-0" / "result.json").read_text())
    assert ours.valid is not None
    assert ours.test is not None
    assert vanilla.valid is not None
    assert vanilla.test is not None
    assert (ours.valid.metrics, ours.test.metrics) == (run["best"]["metrics"], run["test"]["metrics"])
    page = (case.results / "README.md").read_text()
    valid, test = (
        split.metrics["perplexity"] / other.metrics["perplexity"]
        for split, other in ((ours.valid, vanilla.valid), (ours.test, vanilla.test))
    )
    shown = [cell.strip("*‡†") for cell in cells(page, "t2")]
    assert shown[:3] == [f"{ours.valid.metrics['perplexity']:,.2f}", "29.57", f"{ours.test.metrics['perplexity']:,.2f}"]
    assert (shown[4], shown[6]) == (f"{valid:.3f}", f"{test:.3f}")
    assert shown[8] == f"{ours.parameters / 1e6:.2f}"
    assert case.run() == 0
    assert "jobs: 2 of 2 finished, 0 to run" in case.out

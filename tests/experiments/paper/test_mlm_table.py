"""The table of masked language models: figures to reckon by hand, and jobs run from text to page and on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from glue_files import write_bpe
from record_case import record_tree
from reproduce_case import ReproduceCase

from transnormer.data.prepare import prepare
from transnormer.errors import ConfigError
from transnormer.experiments.experiment import Selection, plan
from transnormer.experiments.paper.mlm import PARAMETERS, SIZES, MaskedModels, locate, summary
from transnormer.experiments.record import Record, read_records
from transnormer.models.presets import preset_fields

SIZE = ["model.num_hidden_layers=2", "model.num_attention_heads=2", "data.sequence_length=16"]
STAND_IN = {"corpus": "enwiki", "stands_in_for": "WikiText-103"}


def record(method: str, perplexity: float, corpus: str = "enwiki", **changes: Any) -> Record:
    fields = {
        "name": f"mlm-{corpus}-{method}-42",
        "task": "masked_lm",
        "preset": f"{method}-{SIZES[corpus]}",
        "recipe": f"mlm/{corpus}",
        "primary_metric": "perplexity",
        "higher_is_better": False,
        "valid": {"step": 3, "metrics": {"perplexity": perplexity}},
        "test": None,
        "data": {"label": "stand-in", "digest": "0", "sizes": {}, "meta": STAND_IN},
        "parameters": 45_090_000,
        "tokens_per_second": 1234567.8,
        "jobs_at_once": 1,
    }
    return Record.model_validate({**record_tree("text", method), **fields, **changes})


def cells(page: str, row: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_perplexities_and_ratios() -> None:
    page = MaskedModels().page([record("vanilla", 40.0), record("t2", 30.0), record("llama", 20.0)])
    assert cells(page, "method") == ["perplexity", "/ vanilla", "M parameters", "tokens/s", "GiB"]
    assert cells(page, "t2") == ["30.00†", "0.750", "45.09", "1,234,568", "1.50"]
    assert cells(page, "llama (not in the paper)")[:2] == ["**20.00†**", "**0.500**"]
    assert "## wikitext103" not in page


def test_the_papers_own_figures_stand_beside_its_own_recipe() -> None:
    page = MaskedModels().page([record("t2", 3.9, "wikitext103", data=record_tree("text", "t2")["data"])])
    assert cells(page, "method") == ["perplexity", "paper", "/ vanilla", "M parameters", "paper", "tokens/s", "GiB"]
    assert cells(page, "t2")[:2] == ["**3.90**", "3.81"]
    assert cells(page, "t1")[:2] == ["–", "3.82"]
    assert cells(page, "vanilla")[:5] == ["–", "–", "–", "–", "124.70"]


def test_what_is_of_another_experiment_is_left_out(tmp_path: Path) -> None:
    assert locate(record("t2", 1.0)) == ("t2", "mlm-enwiki")
    assert locate(record("t2", 1.0, preset="t2-mlm")) is None, "of another size than its recipe's"
    assert locate(record("t2", 1.0, recipe="lm/enwiki")) is None
    assert locate(record("t2", 1.0, recipe=None)) is None
    assert summary(tmp_path) is None
    (tmp_path / "mlm").mkdir()
    record("t2", 30.0).write(tmp_path / "mlm")
    assert "| **30.00†**" in (summary(tmp_path) or "")


def test_the_jobs_of_every_method() -> None:
    experiment = MaskedModels()
    assert set(experiment.rows) == {*PARAMETERS, "llama"}
    for setup, (steps, tokens) in {"wikitext103": (50_000, 512 * 512), "enwiki": (4000, 65_536)}.items():
        [column] = experiment.columns(setup)
        selection = Selection(experiment.rows, [column], [0], setup, overrides=["data.source=somewhere"])
        jobs = plan(experiment, selection, Path("runs"))
        assert [job.name for job in jobs] == [f"{column}-{row}-0" for row in experiment.rows]
        first = jobs[0].config
        for job, row in zip(jobs, experiment.rows, strict=True):
            model = first.model.model_copy(update={"preset": f"{row}-{SIZES[setup]}"})
            assert job.config == first.model_copy(update={"model": model}), "a row changes its preset alone"
        assert (first.train.steps, first.train.batch_size * first.data.sequence_length) == (steps, tokens)
        longest = preset_fields(first.model.preset or "").max_position_embeddings
        assert first.data.sequence_length <= longest


def test_missing_data_says_where_to_get_them() -> None:
    with pytest.raises(ConfigError, match="data prepare enwiki --tokenizer roberta:GPT2 --source PATH") as raised:
        plan(MaskedModels(), Selection(["t2"], ["mlm-enwiki"], [0], "enwiki"), Path("runs"))
    assert "vocab.json and merges.txt" in str(raised.value)
    assert "--out data/mlm-enwiki" in str(raised.value)


def test_from_text_to_the_page(case: ReproduceCase, tmp_path: Path) -> None:
    source = tmp_path / "enwiki"
    source.mkdir()
    article = " = Title {0} = \n" + "The words of the number {0}, and then some more.\n" * 6
    (source / "train.txt").write_text("".join(article.format(number) for number in range(30)))
    (source / "valid.txt").write_text("".join(article.format(number) for number in range(30, 33)))
    case.data = tmp_path / "stores"
    prepare("enwiki", case.data / "mlm-enwiki", tokenizer=f"roberta:{write_bpe(tmp_path / 'gpt2')}", source=source)
    case.table, case.options = "mlm", ["--setup", "enwiki", "--methods", "t2,vanilla", "--seeds", "0", *SIZE]
    assert case.run() == 0, case.err
    records = {found.preset: found for found in read_records(case.results)}
    ours, vanilla = records["t2-mlm-small"].valid, records["vanilla-mlm-small"].valid
    assert ours is not None
    assert vanilla is not None
    page = (case.results / "README.md").read_text()
    shown = [cell.strip("*‡†") for cell in cells(page, "t2")]
    ratio = ours.metrics["perplexity"] / vanilla.metrics["perplexity"]
    assert shown[:2] == [f"{ours.metrics['perplexity']:,.2f}", f"{ratio:.3f}"]
    assert case.run() == 0
    assert "jobs: 2 of 2 finished, 0 to run" in case.out

"""The ablations: each row's model against what the paper's was, cells that tables share, pages, and real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from record_case import record_tree
from reproduce_case import ReproduceCase

from transnormer.errors import ConfigError
from transnormer.experiments.experiment import Selection, part_of, plan
from transnormer.experiments.job import Job
from transnormer.experiments.paper.ablations import ABLATIONS, COLUMNS, ROWS, Ablations, cell_of, summary
from transnormer.experiments.record import Record, read_records
from transnormer.models.config import TransNormerConfig
from transnormer.models.presets import model_config

SHORT = ["data.sequence_length=32", "data.eval_windows=2", "data.limit_bytes=60000", "model.num_attention_heads=2"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSNORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def planned(setup: str) -> dict[tuple[str, str], Job]:
    """Every job, by row and column."""
    selection = Selection(Ablations().rows, COLUMNS[setup], [1], setup, overrides=["data.source=somewhere"])
    return {(job.row, job.column): job for job in plan(Ablations(), selection, Path("runs"))}


def models(column: str) -> dict[str, TransNormerConfig]:
    """The model of each row, in the paper's size."""
    jobs = planned("wikitext103")
    return {row: model_config(jobs[row, column].config.model) for row in ROWS}


def record(row: str, perplexity: float, column: str = "mlm-enwiki", seed: int = 42, **changes: Any) -> Record:
    fields = {
        "name": f"{column}-{row}-{seed}",
        "recipe": f"ablations/{column}",
        "primary_metric": "perplexity",
        "higher_is_better": False,
        "valid": {"step": 3, "metrics": {"perplexity": perplexity}},
        "test": None,
    }
    return Record.model_validate({**record_tree("text", row, seed), **fields, **changes})


def section(page: str, title: str) -> str:
    return page.split(f"## {title}")[1].split("\n## ")[0]


def cells(page: str, row: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.startswith(f"| {row} |"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_cells_that_several_tables_share_are_one_job() -> None:
    shown = [(name, row) for name, table in ABLATIONS.items() for row, _ in table.labels.values()]
    assert len(shown) == 46
    assert {row for _, row in shown} == ROWS.keys(), "every row is of some table"
    assert sum(row == "t2" for _, row in shown) == 5
    assert sum(row == "linear_elu" for _, row in shown) == 3
    for setup in COLUMNS:
        jobs = list(planned(setup).values())
        assert len(jobs) == 2 * 35
        assert len({job.identity for job in jobs}) == len({job.name for job in jobs}) == len(jobs)


def test_tables_1_to_3_are_of_robertas_layers() -> None:
    found = models("mlm-wikitext103")
    for row in ("linear_elu", "linear_elu-unscaled", "norm", "performer", "vanilla", *_mixed()):
        model = found[row]
        assert (model.norm, model.norm_first, model.feed_forward, model.hidden_act) == ("layer", False, "ffn", "gelu")
        assert (model.position, model.position_embedding, model.intermediate_size) == ("none", "learned", 3072)
        assert (model.num_hidden_layers, model.hidden_size, model.causal) == (12, 768, False)
    assert found["linear_elu"].mixers == ["linear_elu"] * 12
    assert [found[row].options_of("linear_elu")["scaling"] for row in ("linear_elu", "linear_elu-unscaled")] == [1, 0]
    assert found["norm"].mixers == ["norm"] * 12
    assert found["norm"].options_of("norm") == {"feature_map": "1+elu", "xnorm": "rms", "position": "none"}
    assert found["linear_elu-vanilla"].mixers == ["linear_elu"] * 6 + ["softmax"] * 6
    assert found["vanilla-linear_elu"].mixers == ["softmax"] * 6 + ["linear_elu"] * 6


def _mixed() -> tuple[str, str]:
    return ("linear_elu-vanilla", "vanilla-linear_elu")


@pytest.mark.parametrize(("method", "kind", "feature_map"), [("t1", "rela", "elu"), ("t2", "softmax", "1+elu")])
def test_tables_8_to_12_are_of_transnormers_layers(method: str, kind: str, feature_map: str) -> None:
    found = {row: model for row, model in models("mlm-wikitext103").items() if row.startswith(method)}
    assert len(found) == 14
    for row, model in found.items():
        assert (model.norm, model.norm_first, model.position) == ("rms", False, "lrpe")
        is_ffn = row == f"{method}-ffn"
        expected = ("ffn", "gelu", 3072) if is_ffn else ("glu", "silu", 2048)
        assert (model.feed_forward, model.hidden_act, model.intermediate_size) == expected
        for mixer in ("sequential", "parallel"):
            if mixer in (model.mixers or []):
                assert model.mixers == [mixer] * 12
                options = model.options_of(mixer)
                halves = {options[half]: options[f"{half}_options"] for half in ("first", "second")}
                assert halves == {"diag": {"kind": kind}, "norm": {"feature_map": feature_map}}
        assert model.options_of("diag")["kind"] == kind
        assert model.options_of("norm")["feature_map"] == feature_map
    for count in (0, 3, 9, 12):
        assert found[f"{method}-diag{count}"].mixers == ["diag"] * count + ["norm"] * (12 - count)
    assert found[method].mixers == ["diag"] * 6 + ["norm"] * 6
    assert found[f"{method}-norm-diag"].mixers == ["norm"] * 6 + ["diag"] * 6
    blocks = {size: found[f"{method}-block{size}"].options_of("diag")["block_size"] for size in (16, 32, 128, 256)}
    assert blocks == {16: 16, 32: 32, 128: 128, 256: 256}
    assert found[method].options_of("diag")["block_size"] == 64
    assert found[f"{method}-sequential"].options_of("sequential")["first"] == "diag"
    assert found[f"{method}-sequential-norm-diag"].options_of("sequential")["first"] == "norm"


def test_causal_models_are_the_same_rows_in_the_causal_shell() -> None:
    masked, causal = models("mlm-wikitext103"), models("wikitext103")
    for row in ROWS:
        assert causal[row].causal
        assert causal[row].norm_first
        same = ("mixers", "mixer_options", "norm", "feed_forward", "position", "hidden_size", "num_hidden_layers")
        assert {key: getattr(causal[row], key) for key in same} == {key: getattr(masked[row], key) for key in same}
    assert causal["t2-ffn"].hidden_act == causal["vanilla"].hidden_act == "relu"


def test_every_row_of_a_column_has_the_same_data_and_schedule() -> None:
    for setup in COLUMNS:
        jobs = planned(setup)
        for column in COLUMNS[setup]:
            first = jobs["t2", column].config
            assert all(
                job.config == first.model_copy(update={"model": job.config.model})
                for (_, at), job in jobs.items()
                if at == column
            )


def test_a_page_has_the_papers_numbers_and_whether_its_order_holds() -> None:
    found = [record("linear_elu", 8.0), record("norm", 7.0), record("linear_elu-unscaled", 6.0)]
    found += [record("t2", 4.0), record("t2-ffn", 5.0), record("t2-ffn", 50.0, "enwiki")]
    page = Ablations().page(found)
    scaling = section(page, "scaling (enwiki): table 1 of the paper")
    assert cells(scaling, "method") == ["masked", "paper", "causal"]
    assert cells(scaling, "1+elu without scaling") == ["**6.00**", "797.08", "–"]
    assert "masked: order of the paper: NormAttention < 1+elu < 1+elu without scaling; " in scaling
    assert "ours: 1+elu without scaling < NormAttention < 1+elu; does not hold: " in scaling
    ffn = section(page, "ffn (enwiki): table 10 of the paper")
    assert cells(ffn, "T2 GLU") == ["**4.00**", "3.81", "–"]
    assert cells(ffn, "T1 FFN") == ["–", "3.93", "–"]
    assert "masked: order of the paper: T2 GLU < T2 FFN; ours: T2 GLU < T2 FFN; holds (one seed" in ffn
    assert ffn.count("order of the paper") == 1, "only what ran is judged"
    assert "T2 blocks of 64" in section(page, "block-size (enwiki): table 11")
    cost = page.split("## Cost")[1]
    assert sum(line.startswith("| t2 |") for line in cost.splitlines()) == 1, "each cell once"
    assert "tiny" not in page


def test_a_row_that_never_had_a_finite_score_ran_and_is_worse_than_any() -> None:
    records = [record("linear_elu", 5.0), record("linear_elu-unscaled", 0.0, valid=None), record("norm", 4.0)]
    text = section(Ablations().page(records), "scaling (enwiki)")
    assert cells(text, "1+elu without scaling")[0] == "nan"
    assert "ours: NormAttention < 1+elu < 1+elu without scaling; holds" in text
    assert "not run" not in text


def test_the_deviation_of_gradients_is_in_the_record() -> None:
    def with_deviation(row: str, deviation: float, nonfinite: int = 0) -> Record:
        norm = {"steps": 9, "mean": 2.0, "relative_deviation": deviation, "nonfinite": nonfinite}
        return record(row, 5.0, gradient_norm=norm)

    found = [with_deviation("linear_elu", 0.9), with_deviation("vanilla", 0.1, 7), record("norm", 5.0)]
    gradients = section(Ablations().page(found), "gradients (enwiki): table 2")
    assert cells(gradients, "1+elu")[:2] == ["0.90", "0.58"]
    assert cells(gradients, "vanilla")[:2] == ["**0.10**", "0.25"]
    assert cells(gradients, "NormAttention")[:2] == ["–", "0.20"], "an older record has none"
    assert "order of the paper: vanilla < 1+elu; ours: vanilla < 1+elu; holds" in gradients
    assert "gradient was not finite: mlm-enwiki-vanilla-42 7." in gradients


def test_two_data_sets_in_a_column_are_marked() -> None:
    other = {"label": "enwiki", "digest": "f" * 64, "sizes": {}, "meta": {}}
    mixed = [record("t2", 4.0), record("t2-ffn", 5.0, data=other)]
    page = Ablations().page([*mixed, record("t2", 6.0, "enwiki"), record("t2-ffn", 5.0, "enwiki")])
    ffn = section(page, "ffn (enwiki)")
    assert "**mlm-enwiki: records of 2 data sets, which must not be compared**" in ffn
    assert "enwiki, ffffffffffff: T2 FFN" in ffn
    assert "masked: order" not in ffn
    assert "causal: order" in ffn
    assert cells(ffn, "T2 GLU") == ["4.00", "3.81", "6.00"], "nor is one of them the best"
    assert cells(ffn, "T2 FFN") == ["5.00", "3.93", "**5.00**"]
    apart = [record("t2", 4.0), record("t2-ffn", 5.0, "enwiki", data=other)]
    assert "data sets" not in Ablations().page(apart), "columns are never compared"


def test_records_of_other_experiments_are_left_out(tmp_path: Path) -> None:
    assert cell_of(record("t2-block16", 4.0, seed=7)) == ("t2-block16", "mlm-enwiki")
    assert cell_of(record("t2", 4.0, recipe="mlm/enwiki")) is None
    assert cell_of(record("t3", 4.0)) is None
    assert summary(tmp_path) is None


def test_a_table_by_name() -> None:
    experiment = Ablations()
    assert part_of(experiment, None) == experiment.rows
    assert list(part_of(experiment, "scaling")) == ["linear_elu", "linear_elu-unscaled", "norm"]
    with pytest.raises(ConfigError, match=r"no table 'scalin' in ablations .there are: scaling, gradients, early-late"):
        part_of(experiment, "scalin")


def test_two_tables_from_text_to_the_page(case: ReproduceCase) -> None:
    case.table, case.data = "table1", case.folder
    case.options = ["--setup", "tiny", "--seeds", "0", *SHORT]
    assert case.run() == 0, case.err
    assert "jobs: 0 of 6 finished, 6 to run" in case.out
    found = {each.name: each for each in read_records(case.results)}
    assert sorted(found) == sorted(
        f"{column}-{row}-0" for column in COLUMNS["tiny"] for row in ("linear_elu", "linear_elu-unscaled", "norm")
    )
    norm = found["mlm-python-norm-0"]
    assert norm.gradient_norm is not None
    assert norm.gradient_norm.steps == 4
    assert "model.mixers" not in norm.changes, "what a row is, is no difference"
    page = (case.results / "README.md").read_text()
    assert norm.valid is not None
    assert f"{norm.valid.metrics['perplexity']:,.2f}" in cells(section(page, "scaling"), "NormAttention")[0]
    assert "order of the paper: NormAttention < 1+elu < 1+elu without scaling" in page

    case.table, case.options = "ablations", [*case.options, "--table", "gradients"]
    assert case.run("--dry-run") == 0, case.err
    assert "jobs: 4 of 8 finished, 4 to run" in case.out, "1+elu and NormAttention are those of table 1"

    assert case.run("data.limit_bytes=50000", "--methods", "performer", "--tasks", "python") == 2
    assert "in the same column, was made from other data: its digest is" in case.err
    assert sorted(each.name for each in read_records(case.results)) == sorted(found)

    of_other_data = {"name": "mlm-python-t2-0", "data": norm.data.model_copy(update={"digest": "f" * 64})}
    norm.model_copy(update=of_other_data).write(case.results)
    case.table, case.options = "table1", ["--setup", "tiny", "--seeds", "0", *SHORT]
    assert case.run() == 2, "what is finished is not written into one table with it either"
    assert "mlm-python-t2-0.json, in the same column, was made from other data: its digest is ffffff" in case.err
    assert page == (case.results / "README.md").read_text()

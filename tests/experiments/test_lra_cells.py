"""Which cells a grid has, in which order, and what becomes of wrong names."""

from __future__ import annotations

from pathlib import Path

import pytest

from transnormer.config.load import load_config
from transnormer.errors import ConfigError
from transnormer.experiments import cells
from transnormer.experiments.cells import Cell, differences
from transnormer.experiments.lra_cells import arena_methods, chosen, chosen_seeds, plan_cells
from transnormer.models.presets import METHODS
from transnormer.report.lra_paper import TASKS


def test_the_methods_of_the_comparison_come_first() -> None:
    methods = arena_methods()
    assert methods[:6] == ["t2", "vanilla", "linear_elu", "performer", "cosformer", "t1"]
    assert sorted(methods) == sorted(METHODS)


def test_cells_are_whole_rows_in_the_order_given() -> None:
    overrides = ["data.source=somewhere", "train.steps=5000"]
    planned = plan_cells(["t2", "flash"], TASKS, [1, 2], Path("runs"), None, overrides)
    places = [(cell.seed, cell.method, cell.task) for cell in planned]
    assert places == [(seed, method, task) for seed in (1, 2) for method in ("t2", "flash") for task in TASKS]
    first = planned[0]
    assert (first.name, first.folder) == ("listops-t2-1", Path("runs/listops-t2-1"))
    assert first.log_file == Path("runs/listops-t2-1.log")
    assert (first.config.task, first.config.seed, first.config.train.steps) == ("lra/listops", 1, 5000)
    for cell in planned:
        assert cell.config.model.preset == f"{cell.method}-lra-{cell.task}"
        assert load_config(cell.arguments[0], cell.arguments[1:]) == cell.config


def test_a_method_that_does_not_rotate_keeps_its_positions() -> None:
    def positions(*overrides: str) -> list[str | None]:
        methods, data = ["t1", "t2", "flash", "vanilla", "linear_elu"], "data.source=somewhere"
        planned = plan_cells(methods, ["text"], [42], Path("runs"), None, [data, *overrides], "tuned")
        return [cell.config.model.position_embedding for cell in planned]

    assert positions() == ["none", "none", "none", "sinusoidal", "sinusoidal"]
    assert positions("model.position_embedding=learned") == ["learned"] * 5
    assert positions("model.position_embedding=none") == ["none"] * 5


def test_stores_are_found_by_name_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    planned = plan_cells(["t2"], ["listops", "text"], [42], Path("runs"), tmp_path)
    assert [cell.config.data.store for cell in planned] == [None, str(tmp_path / "text")]
    with pytest.raises(ConfigError, match=f"lra/image cannot be generated, and {tmp_path} has no 'image'") as raised:
        plan_cells(["t2"], ["listops", "image"], [42], Path("runs"), tmp_path)
    assert f"transnormer data prepare lra/image --source PATH --out {tmp_path / 'image'}`" in str(raised.value)
    with pytest.raises(ConfigError, match="there is no --data"):
        plan_cells(["t2"], ["retrieval"], [42], Path("runs"))
    with pytest.raises(ConfigError, match="is not there"):
        plan_cells(["t2"], ["listops"], [42], Path("runs"), tmp_path / "absent")


def test_wrong_names_and_numbers() -> None:
    assert chosen("task", None, ["a", "b"]) == ["a", "b"]
    assert chosen("task", "b, a,b", ["a", "b"]) == ["b", "a"]
    with pytest.raises(ConfigError, match=r"--methods: unknown method 'performr' \(did you mean 'performer'\?\)"):
        chosen("method", "t2,performr", arena_methods())
    assert chosen_seeds("3, 1,3") == [3, 1]
    for text in ("abc", "1,", "-1", "1.5", ""):
        with pytest.raises(ConfigError, match=r"--seeds: .* is not a number"):
            chosen_seeds(text)
    with pytest.raises(ConfigError, match="seed: expected an integer"):
        plan_cells(["t2"], ["listops"], [2**40], Path("runs"))


@pytest.mark.parametrize(("override", "option"), [("seed=1", "--seeds"), ("model.preset=t2-tiny", "--methods")])
def test_what_the_grid_decides_cannot_be_overridden(override: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"differs from cell to cell .*{option}"):
        plan_cells(["t2"], ["listops"], [42], Path("runs"), None, [override])


def test_a_model_that_cannot_be_built_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="multiple"):
        plan_cells(["t2"], ["listops"], [42], Path("runs"), None, ["model.num_attention_heads=3"])


def test_differences_name_every_key() -> None:
    before = load_config("lra/text")
    now = load_config("lra/text", ["optim.lr=0.5", "model.mixer_options={diag: {block_size: 32}}"])
    assert differences(before, before) == {}
    assert differences(before, now) == {"model.mixer_options.diag.block_size": (None, 32), "optim.lr": (1e-4, 0.5)}


def test_progress_is_read_from_the_end_of_the_journal(tmp_path: Path) -> None:
    cell = Cell("text", "t2", 42, tmp_path, load_config("lra/text"), ("lra/text",))
    assert cell.logged_step() is None
    assert cell.saved_step() == 0
    assert cell.command() == [*cells.PROGRAM, "train", "lra/text", "--out", str(tmp_path)]
    journal = tmp_path / "journal.jsonl"
    journal.write_text("")
    assert cell.logged_step() is None
    lines = "".join(f'{{"kind": "train", "step": {step}, "loss": 1.0}}\n' for step in range(1, 3001))
    journal.write_text(lines + '{"kind": "eval", "step": 3000, "split": "train", "metrics": {}}\n{"kind": "train", "st')
    assert cell.logged_step() == 3000
    (tmp_path / "config.yaml").write_text("{}")
    assert cell.command() == [*cells.PROGRAM, "resume", str(tmp_path)]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    cell = Cell("text", "t2", 42, tmp_path / "run", load_config("lra/text"), ("lra/text",))
    cell.check_folder()
    (tmp_path / "run").mkdir()
    cell.check_folder()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty .*choose another --runs"):
        cell.check_folder()

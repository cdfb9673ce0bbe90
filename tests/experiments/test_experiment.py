"""Which jobs a table has, in which order, and what becomes of wrong names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from transnormer.cli.lists import choose_names, parse_seeds
from transnormer.config.load import load_config
from transnormer.errors import ConfigError
from transnormer.experiments import job as jobs
from transnormer.experiments.experiment import Selection, chosen_setup, plan
from transnormer.experiments.job import Job, differences, identity_of
from transnormer.experiments.paper import experiment, list_tables
from transnormer.experiments.paper.lra import TASKS, LongRangeArena
from transnormer.models.presets import METHODS


def planned(
    methods: Sequence[str],
    tasks: Sequence[str],
    seeds: Sequence[int] = (42,),
    data: Path | None = None,
    overrides: Sequence[str] = (),
    setup: str = "skyformer",
) -> list[Job]:
    return plan(LongRangeArena(), Selection(methods, tasks, seeds, setup, data, overrides), Path("runs"))


def text_job(folder: Path) -> Job:
    return Job("text-t2-42", "t2", "text", folder, load_config("lra/text"), ("lra/text",))


def test_every_method_is_a_row_of_the_arena() -> None:
    assert LongRangeArena().rows == list(METHODS)


def test_jobs_are_complete_rows_in_the_order_given() -> None:
    overrides = ["data.source=somewhere", "train.steps=5000"]
    found = planned(["t2", "flash"], TASKS, [1, 2], None, overrides)
    places = [(job.config.seed, job.row, job.column) for job in found]
    assert places == [(seed, method, task) for seed in (1, 2) for method in ("t2", "flash") for task in TASKS]
    first = found[0]
    assert (first.name, first.folder) == ("listops-t2-1", Path("runs/listops-t2-1"))
    assert first.log_file == Path("runs/listops-t2-1.log")
    assert (first.config.task, first.config.seed, first.config.train.steps) == ("lra/listops", 1, 5000)
    for job in found:
        assert job.config.model.preset == f"{job.row}-lra-{job.column}"
        assert load_config(job.arguments[0], job.arguments[1:]) == job.config


def test_a_method_that_does_not_rotate_keeps_its_positions() -> None:
    def positions(*overrides: str) -> list[str | None]:
        methods, data = ["t1", "t2", "flash", "vanilla", "linear_elu"], "data.source=somewhere"
        found = planned(methods, ["text"], overrides=[data, *overrides], setup="tuned")
        return [job.config.model.position_embedding for job in found]

    assert positions() == ["none", "none", "none", "sinusoidal", "sinusoidal"]
    assert positions("model.position_embedding=learned") == ["learned"] * 5
    (learned,) = planned(
        ["vanilla"], ["text"], overrides=["data.source=x", "model.position_embedding=learned"], setup="tuned"
    )
    assert learned.config.model.scale_embedding is None, "who chooses positions is left alone"
    assert positions("model.position_embedding=none") == ["none"] * 5


def test_stores_are_found_by_name_and_missing_ones_are_named(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    found = planned(["t2"], ["listops", "text"], data=tmp_path)
    assert [job.config.data.store for job in found] == [None, str(tmp_path / "text")]
    with pytest.raises(ConfigError, match=f"lra/image cannot be generated, and {tmp_path} has no 'image'") as raised:
        planned(["t2"], ["listops", "image"], data=tmp_path)
    assert f"transnormer data prepare lra/image --source PATH --out {tmp_path / 'image'}`" in str(raised.value)
    with pytest.raises(ConfigError, match="there is no --data"):
        planned(["t2"], ["retrieval"])
    with pytest.raises(ConfigError, match="is not there"):
        planned(["t2"], ["listops"], data=tmp_path / "absent")


def test_wrong_names_and_numbers() -> None:
    assert choose_names("--tasks", None, ["a", "b"]) == ["a", "b"]
    assert choose_names("--tasks", "b, a,b", ["a", "b"]) == ["b", "a"]
    with pytest.raises(ConfigError, match=r"--methods: unknown 'performr' \(did you mean 'performer'\?\)"):
        choose_names("--methods", "t2,performr", LongRangeArena().rows)
    assert parse_seeds("3, 1,3") == [3, 1]
    assert chosen_setup(None, LongRangeArena.setups) == "skyformer"
    assert chosen_setup("tuned", LongRangeArena.setups) == "tuned"
    for text in ("abc", "1,", "-1", "1.5", ""):
        with pytest.raises(ConfigError, match=r"--seeds: .* is not a number"):
            parse_seeds(text)
    with pytest.raises(ConfigError, match="seed: expected an integer"):
        planned(["t2"], ["listops"], [2**40])


@pytest.mark.parametrize(("override", "option"), [("seed=1", "--seeds"), ("model.preset=t2-tiny", "--methods")])
def test_what_the_table_decides_cannot_be_overridden(override: str, option: str) -> None:
    with pytest.raises(ConfigError, match=f"differs from job to job .*{option}"):
        planned(["t2"], ["listops"], overrides=[override])


def test_what_is_overridden_in_one_row_alone() -> None:
    overrides = ["data.source=C:/texts", "t2:train.steps=3000", "train.steps=2000", "t2:optim.lr=0.5"]
    t2, vanilla = planned(["t2", "vanilla"], ["listops"], overrides=overrides)
    assert (t2.config.train.steps, t2.config.optim.lr) == (3000, 0.5), "whatever was said of all"
    assert (vanilla.config.train.steps, vanilla.config.optim.lr) == (2000, 1e-4)
    assert str(t2.config.data.source).endswith("C:/texts"), "a colon in a value is no name of a row"
    with pytest.raises(ConfigError, match=r"'t3:train.steps=3000': there is no job of 't3' .*t2"):
        planned(["t2"], ["listops"], overrides=["t3:train.steps=3000"])
    with pytest.raises(ConfigError, match=r"differs from job to job .*--seeds"):
        planned(["t2"], ["listops"], overrides=["t2:seed=1"])


def test_a_model_that_cannot_be_built_is_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="multiple"):
        planned(["t2"], ["listops"], overrides=["model.num_attention_heads=3"])


def test_differences_name_every_key() -> None:
    before = load_config("lra/text")
    now = load_config("lra/text", ["optim.lr=0.5", "model.mixer_options={diag: {block_size: 32}}"])
    assert differences(before, before) == {}
    assert differences(before, now) == {"model.mixer_options.diag.block_size": (None, 32), "optim.lr": (1e-4, 0.5)}


def test_progress_is_read_from_the_end_of_the_journal(tmp_path: Path) -> None:
    job = text_job(tmp_path)
    assert job.logged_step() is None
    assert job.saved_step() == 0
    assert job.command() == [*jobs.PROGRAM, "train", "lra/text", "--out", str(tmp_path)]
    journal = tmp_path / "journal.jsonl"
    journal.write_text("")
    assert job.logged_step() is None
    rest = '"loss": 1.0, "grad_norm": 1.0, "tokens": 1}'
    lines = "".join(f'{{"kind": "train", "step": {step}, {rest}\n' for step in range(1, 3001))
    journal.write_text(lines + '{"kind": "eval", "step": 3000, "split": "train", "metrics": {}}\n{"kind": "train", "st')
    assert job.logged_step() == 3000
    (tmp_path / "config.yaml").write_text("{}")
    assert job.command() == [*jobs.PROGRAM, "resume", str(tmp_path)]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    job = text_job(tmp_path / "run")
    job.check_folder()
    (tmp_path / "run").mkdir()
    job.check_folder()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty .*choose another --runs"):
        job.check_folder()


def test_the_identity_of_a_job_does_not_depend_on_where_it_runs(tmp_path: Path) -> None:
    def identity(*overrides: str) -> str:
        return identity_of(load_config("lra/listops", overrides))

    same = [(), ("train.device=cpu",), (f"data.store={tmp_path}",), (f"data.source={tmp_path}",)]
    assert len({identity(*overrides) for overrides in same}) == 1
    others = [("seed=7",), ("optim.lr=0.5",), ("lra.limit_examples=3",), ("model.norm=batch",)]
    assert len({identity(*overrides) for overrides in [(), *others]}) == len(others) + 1


def test_every_table_of_the_paper_has_jobs_whose_names_are_theirs_alone() -> None:
    """In folders that tables share, a name is one job, and a job has one name."""
    found: dict[tuple[str, str], set[str]] = {}
    for name in list_tables():
        table = experiment(name)
        for setup in table.setups:
            rows, elsewhere = table.rows, ["data.source=somewhere"]
            if name == "glue":  # nobody can count the steps of its epochs, and it has parents with data of their own
                rows, elsewhere = rows[:2], [*elsewhere, "glue.epochs=null", "mlm:data.source=somewhere"]
            if name == "recall":  # its sequences are generated: there is no source
                elsewhere = []
            selection = Selection(rows, table.columns(setup), [1], setup, overrides=elsewhere)
            for job in plan(table, selection, Path("runs")):
                found.setdefault((table.folder(setup), job.name), set()).add(job.identity)
    assert all(len(identities) == 1 for identities in found.values())
    in_folders = [(folder, identity) for (folder, _), identities in found.items() for identity in identities]
    assert len(set(in_folders)) == len(in_folders)

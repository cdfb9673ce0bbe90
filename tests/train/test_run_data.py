"""The data of a run: it keeps to those it began with, wherever they lie and from wherever it is resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from lra_files import lra_config
from tiny_run import stop_at, tiny_config, tiny_store, weights_hash

from transnormer.config.load import load_config
from transnormer.data.example_manifest import ExampleManifest
from transnormer.data.manifest import read_manifest, to_json
from transnormer.data.open_store import open_store
from transnormer.data.prepare import prepare
from transnormer.data.tokenizers import byte_tokenizer
from transnormer.errors import DataError, Preempted
from transnormer.train.loop import evaluate_run, resume, train


def train_four_steps(config, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until a signal arrives in the fourth step, which is saved."""
    with monkeypatch.context() as patch:
        stop_at(patch, 4)
        with pytest.raises(Preempted, match="after step 4"):
            train(config, run, show=False)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def other_store(folder: Path) -> Path:
    (folder / "other.txt").write_text("another text of about the same kind, and of enough bytes\n" * 30)
    return prepare("text", folder / "other", tokenizer="byte", source=str(folder / "other.txt"))


def test_other_data_at_the_same_path_are_refused(undisturbed: Path, tmp_path: Path, monkeypatch) -> None:
    store, run = tiny_store(tmp_path), tmp_path / "run"
    train_four_steps(tiny_config(store), run, monkeypatch)
    began_with = open_store(store).digest
    store.rename(tmp_path / "old")
    other_store(tmp_path).rename(store)
    before = contents(run)
    for verb in (lambda: resume(run, show=False), lambda: evaluate_run(run, checkpoint="last")):
        with pytest.raises(DataError) as refused:
            verb()
        for word in (str(run), str(store), began_with[:12], open_store(store).digest[:12]):
            assert word in refused.value.message
        assert "put the old data back" in refused.value.hint
        assert "transnormer train" in refused.value.hint
    assert contents(run) == before
    shutil.rmtree(store)
    (tmp_path / "old").rename(store)
    resume(run, show=False)
    assert weights_hash(run) == weights_hash(undisturbed)


def test_a_corpus_that_changed_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text("the first text of this corpus, long enough for some windows\n" * 40)
    config = tiny_config(tmp_path, data__store=None, data__corpus="text", data__source=str(text))
    train_four_steps(config, run, monkeypatch)
    text.write_text("the second text, which is prepared into a store of its own\n" * 40)
    with pytest.raises(DataError, match="put the old data back"):
        resume(run, show=False)


def test_other_examples_are_refused(lra_store: Callable[[str], Path], tmp_path: Path) -> None:
    config = lra_config("lra/listops", shutil.copytree(lra_store("lra/listops"), tmp_path / "store"))
    train(config, tmp_path / "run", show=False)
    manifest = read_manifest(tmp_path / "store", ExampleManifest)
    other = manifest.model_copy(update={"meta": {"generated": {"seed": 5}}})
    (tmp_path / "store" / "manifest.json").write_text(to_json(other))
    with pytest.raises(DataError, match="put the old data back"):
        evaluate_run(tmp_path / "run")


def test_a_run_of_an_older_version_has_nothing_to_compare(undisturbed: Path, tmp_path: Path, monkeypatch) -> None:
    """Nor did it refuse keys that have no effect beside a store."""
    store, run = tiny_store(tmp_path), tmp_path / "run"
    train_four_steps(tiny_config(store, data__corpus="text", data__tokenizer="bpe"), run, monkeypatch)
    (run / "data.json").unlink()
    evaluate_run(run, checkpoint="last")
    resume(run, show=False)
    assert weights_hash(run) == weights_hash(undisturbed)


def test_a_damaged_record_of_the_data_is_named(store: Path, tmp_path: Path, monkeypatch) -> None:
    train_four_steps(tiny_config(store), tmp_path / "run", monkeypatch)
    for damaged in ("", '{"store": "x", "digest": 1}'):
        (tmp_path / "run" / "data.json").write_text(damaged)
        with pytest.raises(DataError, match=r"data\.json is damaged"):
            resume(tmp_path / "run", show=False)


def test_relative_paths_are_those_of_the_folder_where_the_run_began(
    store: Path, undisturbed: Path, tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.copytree(store, tmp_path / "tokens")
    monkeypatch.chdir(tmp_path)
    train_four_steps(tiny_config(Path("tokens")), Path("run"), monkeypatch)
    assert load_config("run/config.yaml").data.store == str(tmp_path / "tokens")
    monkeypatch.chdir(tmp_path / "elsewhere")
    resume(tmp_path / "run", show=False)
    assert weights_hash(tmp_path / "run") == weights_hash(undisturbed)


def test_a_relative_tokenizer_is_found_from_elsewhere_and_may_move(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("a text of this corpus, long enough for some windows\n" * 40)
    byte_tokenizer().save_pretrained(tmp_path / "saved")
    monkeypatch.chdir(tmp_path)
    config = tiny_config(
        tmp_path, data__store=None, data__corpus="text", data__source="text.txt", data__tokenizer="saved"
    )
    train_four_steps(config, tmp_path / "run", monkeypatch)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    evaluate_run(tmp_path / "run", checkpoint="last")
    (tmp_path / "saved").rename(tmp_path / "moved")
    written = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(written.replace(str(tmp_path / "saved"), str(tmp_path / "moved")))
    resume(tmp_path / "run", show=False)


def test_data_may_move(undisturbed: Path, tmp_path: Path, monkeypatch) -> None:
    """Its checkpoints remember where the store was, as those of older versions remember a relative path."""
    store, run = tiny_store(tmp_path), tmp_path / "run"
    train_four_steps(tiny_config(store), run, monkeypatch)
    store.rename(tmp_path / "moved")
    for use in (resume, evaluate_run):
        with pytest.raises(DataError, match="is not there") as error:
            use(run)
        assert f"data.store in {run / 'config.yaml'}" in str(error.value.hint)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace(str(store), str(tmp_path / "moved")))
    resume(run, show=False)
    assert weights_hash(run) == weights_hash(undisturbed)

"""Each verb does on a real run what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
import transformers

from transnormer.config.load import load_config
from transnormer.config.recipe import list_recipes
from transnormer.experiments.paper import list_tables
from transnormer.mixers.registry import list_mixers
from transnormer.models.presets import list_presets
from transnormer.tasks.registry import TASKS
from transnormer.train.run_folder import RunFolder


def test_dry_run_prints_a_config_that_can_be_used(cli: Callable, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text("some words of an article\n")
    overrides = [f"data.source={tmp_path}", "seed=7", "model.mixer_options={diag: {block_size: 32}}"]
    done = cli("train", "lm/wikitext103", "--dry-run", *overrides)
    assert done.code == 0, done.err
    (tmp_path / "mine.yaml").write_text(done.out)
    assert load_config(tmp_path / "mine.yaml") == load_config("lm/wikitext103", overrides)


@pytest.mark.parametrize(
    "arguments",
    [
        ["demo", "data.store=nowhere"],
        ["demo", "data.store=listops"],
        ["lra/text", "data.store=listops"],
        ["lra/listops", "data.store=text"],
        ["lm/wikitext103"],
        ["lm/text", "data.source=none/*.txt"],
        ["lra/text"],
        ["lra/text", "data.source=nowhere"],
        ["lra/listops", "data.sequence_length=7"],
        ["demo", "lra.limit_examples=5"],
        ["demo", "lra.protocol=skyformer"],
        ["demo", "train.device=cuda"],
        ["demo", "data.limit_bytes=100000", "train.execution=cuda_graph", "train.device=cpu"],
        ["demo", "data.store=text", "train.execution=cuda_graph", "train.device=cpu"],
        ["demo", "data.store=text", "data.sequence_length=1000000"],
        ["demo", "data.store=text", "train.batch_size=1000000000000"],
        ["demo", "--out", "used"],
        ["demo", "--out", "used/config.yaml/run"],
    ],
    ids=" ".join,
)
def test_dry_run_finds_what_would_stop_the_run_and_creates_nothing(
    cli: Callable,
    store: Path,
    lra_store: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    Path("text").symlink_to(store)
    Path("listops").symlink_to(lra_store("lra/listops"))
    Path("used").mkdir()
    Path("used", "config.yaml").write_text("seed: 1\n")
    before = sorted(tmp_path.rglob("*"))
    out = [] if "--out" in arguments else ["--out", "run"]
    rehearsal = cli("train", *arguments, *out, "--dry-run")
    assert sorted(tmp_path.rglob("*")) == before
    assert rehearsal.code in (2, 5, 6)
    assert rehearsal.out == ""
    assert rehearsal == cli("train", *arguments, *out)


@pytest.mark.parametrize("data", [["demo", "data.limit_bytes=100000"], ["demo", "data.store=text"], ["lra/listops"]])
def test_dry_run_of_a_sound_run_creates_nothing(
    cli: Callable, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    Path("text").symlink_to(store)
    done = cli("train", *data, "--out", "run", "--dry-run")
    assert done.code == 0, done.err
    assert done.out.startswith("task: ")
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_dry_run_takes_no_memory_for_weights(cli: Callable, store: Path) -> None:
    """Those of this model would be petabytes."""
    sizes = ["model.hidden_size=16777216", "model.num_hidden_layers=2", "model.num_attention_heads=2"]
    done = cli("train", "demo", f"data.store={store}", *sizes, "--dry-run")
    assert done.code == 0, done.err


def test_names_are_checked_before_any_data_is_prepared(
    cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    assert cli("train", "demo", "--out", tmp_path / "run", "model.preset=t3-tiny").code == 2
    assert cli("train", "demo", "--dry-run", "model.preset=t3-tiny").code == 2
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_is_not_read_as_markup(cli: Callable, store: Path, tmp_path: Path) -> None:
    strange = tmp_path / ":smile: [red]"
    strange.symlink_to(store)
    assert f"store: '{strange}'" in cli("train", "demo", "--dry-run", f"data.store={strange}").out
    assert "override data.store=:smile:" in cli("explain", "demo", "data.store=:smile:").out


def test_train_writes_a_run_and_says_how_it_went(cli: Callable, store: Path, tiny: list[str], tmp_path: Path) -> None:
    done = cli("train", "demo", f"data.store={store}", *tiny, "--out", tmp_path / "run", "seed=3")
    assert done.code == 0
    assert "step 4/4" in done.out
    assert f"finished {tmp_path / 'run'}" in done.out
    assert f"the model is in {tmp_path / 'run' / 'final'}" in done.out
    assert f"transnormer eval {tmp_path / 'run'}" in done.out
    assert load_config(tmp_path / "run" / "config.yaml").seed == 3
    assert (tmp_path / "run" / "final" / "model.safetensors").is_file()


def test_train_refuses_an_existing_run(cli: Callable, finished_run: Path) -> None:
    before = (finished_run / "journal.jsonl").read_bytes()
    done = cli("train", "demo", "--out", finished_run)
    assert done.code == 2
    assert "already holds a run" in done.err
    assert (finished_run / "journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("verb", ["resume", "report"])
def test_a_damaged_result_is_named(cli: Callable, finished_run: Path, tmp_path: Path, verb: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "result.json").write_text("")
    done = cli(verb, run, *(["--out", tmp_path / "page.html"] if verb == "report" else []))
    assert done.code == 5
    assert "result.json" in done.err
    assert not (tmp_path / "page.html").exists()


def test_an_out_that_cannot_be_made_is_named(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = cli("train", "demo", "--out", tmp_path / "file" / "run")
    assert done.code == 6
    assert "Not a directory" in done.err
    (tmp_path / "page.html").mkdir()
    done = cli("report", finished_run, "--out", tmp_path / "page.html")
    assert done.code == 6
    assert "Is a directory" in done.err


def test_resume_of_a_finished_run_says_so(cli: Callable, finished_run: Path) -> None:
    done = cli("resume", finished_run)
    assert done.code == 0
    assert done.out.startswith(f"{finished_run} is finished after 4 steps, there is nothing to resume")
    assert f"the model is in {finished_run / 'final'}" in done.out


def test_resume_of_a_finished_run_without_weights_names_none(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    RunFolder(tmp_path / "run").remove_weights()
    done = cli("resume", tmp_path / "run")
    assert done.code == 0
    assert "its weights were removed" in done.out
    assert "the model is in" not in done.out


def test_resume_ends_with_the_words_of_train(cli: Callable, finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "result.json").unlink()
    shutil.rmtree(run / "final")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    done = cli("resume", run)
    assert done.code == 0, done.err
    assert "resumed after step 2" in done.out
    finished, tested, model, further = done.out.splitlines()[-4:]
    assert finished.startswith(f"finished {run} in ")
    assert "perplexity" in finished
    assert tested.startswith("test split, once, with the best checkpoint")
    assert model.startswith(f"the model is in {run / 'final'}")
    assert further == f"write with it: transnormer generate {run}"


@pytest.mark.parametrize(("split", "checkpoint"), [("valid", "final"), ("test", "best"), ("valid", "last")])
def test_eval_shows_and_writes_the_numbers(cli: Callable, finished_run: Path, split: str, checkpoint: str) -> None:
    done = cli("eval", finished_run, "--split", split, "--checkpoint", checkpoint)
    assert done.code == 0
    written = json.loads((finished_run / f"eval-{checkpoint}-{split}.json").read_text())
    assert f"{written['metrics']['bits_per_byte']:.6g}" in done.out
    assert "perplexity" in done.out
    assert written["protocol"] in done.out
    assert written["split"] == split


def test_eval_splits_differ(cli: Callable, finished_run: Path) -> None:
    for split in ("valid", "test"):
        cli("eval", finished_run, "--split", split)
    valid, test = (json.loads((finished_run / f"eval-final-{split}.json").read_text()) for split in ("valid", "test"))
    assert valid["metrics"] != test["metrics"]


def test_eval_of_the_final_weights_is_what_training_reported(cli: Callable, finished_run: Path) -> None:
    cli("eval", finished_run)
    again = json.loads((finished_run / "eval-final-valid.json").read_text())["metrics"]
    result = json.loads((finished_run / "result.json").read_text())["metrics"]
    assert again == pytest.approx(result, rel=1e-6)


def test_generate_continues_the_prompt(cli: Callable, finished_run: Path) -> None:
    arguments = ("generate", finished_run, "--prompt", "the cät", "--max-new-tokens", "20", "--device", "cpu")
    first, again, other = (cli(*arguments, "--seed", seed) for seed in ("1", "1", "2"))
    assert first.code == 0
    assert first.out.startswith("the cät")
    assert first.out == again.out != other.out
    assert "Loading" not in first.err
    assert "on cpu in float32, seed 1\n" in first.err
    assert re.search(r"\n20 tokens, the first after [\d.]+ s, then [\d,]+ tokens/s\n", first.err)
    greedy = cli(*arguments, "--greedy")
    assert greedy.out == cli(*arguments, "--top-k", "1").out


def test_generate_takes_any_causal_model_folder(cli: Callable, tmp_path: Path, store: Path) -> None:
    config = transformers.GPT2Config(vocab_size=259, n_positions=64, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(store / "tokenizer").save_pretrained(tmp_path)
    done = cli("generate", tmp_path, "--prompt", "ab", "--max-new-tokens", "5", "--seed", "0", "--device", "cpu")
    assert done.code == 0
    assert done.out.startswith("ab")


def test_generate_refuses_what_cannot_write(cli: Callable, masked_run: Path, finished_run: Path) -> None:
    done = cli("generate", masked_run)
    assert done.code == 2
    assert "TransNormerForMaskedLM, which does not predict the next token" in done.err
    done = cli("generate", finished_run / "final", "--checkpoint", "best")
    assert done.code == 2
    assert "leave --checkpoint out" in done.err
    done = cli("generate", finished_run, "--prompt", "x", "--temperature", "0")
    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_export_loads_with_the_auto_classes(cli: Callable, finished_run: Path, tmp_path: Path, dtype: str) -> None:
    done = cli("export", finished_run, "--out", tmp_path / "model", "--dtype", dtype)
    assert done.code == 0, done.err
    assert "AutoModelForCausalLM" in done.out
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    assert model.dtype == getattr(torch, dtype)
    original = transformers.AutoModelForCausalLM.from_pretrained(finished_run / "final", dtype=model.dtype).eval()
    ids = torch.arange(90)[None]
    assert torch.equal(model(ids).logits, original(ids).logits)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "model").decode([116, 104, 101]) == "the"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_umask_decides_who_may_read(cli: Callable, store: Path, tiny: list[str], tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert cli("train", "demo", f"data.store={store}", *tiny, "--out", tmp_path / "run").code == 0
        assert cli("export", tmp_path / "run", "--out", tmp_path / "model").code == 0
    finally:
        os.umask(before)
    weights = sorted(tmp_path.rglob("*.safetensors"))
    assert {path.name for path in weights} == {"model.safetensors", "optimizer.safetensors"}
    assert {oct(path.stat().st_mode & 0o777) for path in weights} == {"0o640"}


def test_export_of_a_masked_model_and_into_a_used_folder(cli: Callable, masked_run: Path, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "mine.txt").write_text("mine")
    assert cli("export", masked_run, "--out", tmp_path / "used").code == 2
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert cli("export", masked_run, "--out", tmp_path / "empty", "--checkpoint", "best").code == 0
    transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "empty")


def test_export_that_does_not_agree_writes_nothing(
    cli: Callable, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = transformers.PreTrainedModel.save_pretrained

    def save_damaged(model: transformers.PreTrainedModel, *args: object, **kwargs: object) -> None:
        with torch.no_grad():
            model.get_input_embeddings().weight[0, 0] += 1
        save(model, *args, **kwargs)
        with torch.no_grad():
            model.get_input_embeddings().weight[0, 0] -= 1

    monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", save_damaged)
    done = cli("export", finished_run, "--out", tmp_path / "model")
    assert done.code == 5
    assert "does not give the logits" in done.err
    assert list(tmp_path.iterdir()) == []


def test_data_info_and_verify_and_damage(cli: Callable, store: Path, tmp_path: Path) -> None:
    info = cli("data", "info", store)
    assert info.code == 0
    assert "train" in info.out
    assert "vocabulary 259" in info.out
    assert cli("data", "verify", store).code == 0
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in store.rglob("*"):
        target = copy / file.relative_to(store)
        target.mkdir(parents=True) if file.is_dir() else target.write_bytes(file.read_bytes())
    shard = next(copy.glob("train*.bin"))
    content = bytearray(shard.read_bytes())
    content[10] ^= 1
    shard.write_bytes(content)
    done = cli("data", "verify", copy)
    assert done.code == 5
    assert shard.name in done.err


def test_data_prepare_trains_a_bpe_on_your_text(cli: Callable, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the cat sat on the mat\n" * 200)
    out = tmp_path / "store"
    arguments = ("data", "prepare", "--text", tmp_path / "*.txt", "--tokenizer", "bpe", "--vocab-size", "270")
    assert cli(*arguments, "--out", out).code == 0
    assert "tokenizer bpe" in cli("data", "info", out).out
    assert cli(*arguments, "--out", out).code == 2


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("mixers", list_mixers()),
        ("presets", list_presets()),
        ("recipes", list_recipes()),
        ("tasks", sorted(TASKS)),
        ("tables", list(list_tables())),
    ],
)
def test_list_names_everything(cli: Callable, kind: str, names: list[str]) -> None:
    done = cli("list", kind)
    assert done.code == 0
    listed = [line.split()[0] for line in done.out.splitlines() if line.strip()]
    assert set(names) <= set(listed)


def test_list_mixers_shows_traits(cli: Callable) -> None:
    lines = {line.split()[0]: line for line in cli("list", "mixers").out.splitlines() if line.strip()}
    assert "constant" in lines["norm"]
    assert "block_size" in lines["diag"]
    assert "T^2" in lines["softmax"]
    assert "grows with T" in lines["softmax"]


def test_explain(cli: Callable) -> None:
    one = cli("explain", "optim.schedule").out
    assert "one of: constant, inverse_sqrt, polynomial, cosine, one_cycle" in one
    assert "default cosine" in one
    assert "train.keep_last" in cli("explain").out
    assert "data.store" not in cli("explain", "train").out
    recipe = {line.split()[0]: line for line in cli("explain", "lm/text", "seed=4").out.splitlines() if line.strip()}
    assert "override seed=4" in recipe["seed"]
    assert "lm/text, line " in recipe["train.steps"]
    assert recipe["optim.lr"].split()[1:] == ["0.0005", "default", "0.002"]


def test_doctor_says_which_backend_and_why(cli: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSNORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRANSNORMER_BACKEND", raising=False)
    done = cli("doctor")
    assert done.code == 0
    for op in ("norm_attention", "diag_attention", "rms_norm"):
        assert f"ops.{op}" in done.out
    assert version("torch") in done.out
    assert str(tmp_path / "cache") in done.out
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there the kernel can run")
def test_doctor_shows_problems_and_still_exits_0(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSNORMER_BACKEND", "triton")
    done = cli("doctor")
    assert done.code == 0
    assert "cannot run" in done.out
    assert "to do" in done.out

"""The card of an exported model: read by the Hub's own library, true to the run folder, typed as it is written."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard
from tiny_run import tiny_config, tiny_store

from transnormer.cli.app import main
from transnormer.data.prepare import prepare
from transnormer.errors import DataError
from transnormer.files import write_json
from transnormer.models.presets import preset
from transnormer.report.model_card import model_card
from transnormer.train.loop import evaluate_run, train


def command(*arguments: str | Path) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    assert not exit_.value.code


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that was scored on the test split as well."""
    folder = tmp_path_factory.mktemp("card")
    train(tiny_config(tiny_store(folder)), folder / "run", show=False)
    write_json(folder / "run" / "eval-final-test.json", evaluate_run(folder / "run", "test"))
    return folder / "run"


@pytest.fixture(scope="module")
def model(run: Path) -> Path:
    folder = run.parent / "my model"
    command("export", run, "--out", folder, "--license", "apache-2.0")
    return folder


def results_in(path: Path) -> dict[tuple[str, str, str], float]:
    results = ModelCard.load(path).data.eval_results or []
    return {(each.dataset_split, each.metric_type, each.metric_name): each.metric_value for each in results}


def test_the_hub_reads_license_task_and_scores(run: Path, model: Path):
    data = ModelCard.load(model / "README.md").data
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text-generation")
    result, test = (json.loads((run / name).read_text()) for name in ("result.json", "eval-final-test.json"))
    expected = {("valid", metric, result["protocol"]): value for metric, value in result["metrics"].items()}
    expected |= {("test", metric, test["protocol"]): value for metric, value in test["metrics"].items()}
    spelled = [value for (_, metric, _), value in expected.items() if metric == "word_perplexity"]
    assert min(spelled) > 1e6  # a model of bytes that knows no word yet: that says nothing
    read = {key: value for key, value in expected.items() if key[1] != "word_perplexity"}
    assert results_in(model / "README.md") == read


def test_a_resumed_run_says_how_it_began(run: Path, tmp_path: Path):
    shutil.copytree(run, tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    began = json.loads((run / "environment.json").read_text())["command"]
    write_json(tmp_path / "run" / "result.json", {**result, "command": ["transnormer", "resume", "run"]})
    command("export", tmp_path / "run", "--out", tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    (typed,) = re.findall(r"## How it was trained\n+```bash\n(.*?)\n```", text, re.DOTALL)
    assert typed.splitlines()[-1] == "transnormer resume run"
    assert shlex.split(typed.splitlines()[0])[1:] == began[1:]


def test_it_says_what_the_run_folder_says_and_where_nobody_lives(run: Path, model: Path):
    text = (model / "README.md").read_text()
    result = json.loads((run / "result.json").read_text())
    digest = json.loads((run / "data.json").read_text())["digest"]
    facts = [f"{result['parameters']:,}", f"{result['tokens']:,}", result["protocol"], digest, "**text**", "text.txt"]
    for fact in (*facts, "`t2-tiny`", "seed 0", "fixed size", "qin2022devil"):
        assert fact in text, fact
    keys = yaml.safe_load(re.search(r"```yaml\n(.*?)```", text, re.DOTALL).group(1))
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert keys == {**config, "data": {**config["data"], "store": "store"}}
    assert str(run.parent) not in text
    table = re.search(r"^\| split \|.*?\n\n", text, re.MULTILINE | re.DOTALL).group(0).splitlines()
    assert {line.count("|") for line in table if line} == {len(result["metrics"]) + 1}  # a word perplexity says nothing


def test_what_it_tells_to_type_works(model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.chdir(model.parent)
    text = (model / "README.md").read_text()
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1), {})
    assert "Once upon a time" in capfd.readouterr().out
    generate, harness = (
        re.search(r"```bash\n(transnormer generate.*?)```", text, re.DOTALL).group(1).strip().splitlines()
    )
    command(*shlex.split(generate)[1:])
    assert "Once upon a time" in capfd.readouterr().out
    assert "pretrained=my model,trust_remote_code=True,max_length=32" in shlex.split(harness)


def test_scores_are_those_of_the_exported_weights(run: Path, tmp_path: Path):
    """Step 6 was scored on the way, but it is neither the last nor, here, the best."""
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000006"
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(run / "final", checkpoint)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps({**manifest, "step": 6}))
    exported = {"architecture": "TransNormerForCausalLM", "loads with": "transformers.AutoModelForCausalLM"}
    exported |= {"parameters": "1", "dtype": "float32", "tokenizer": "bytes"}
    card = model_card("model", checkpoint, exported, "unknown")
    assert "have not been scored" in card
    result_file = tmp_path / "run" / "result.json"
    result = json.loads(result_file.read_text())
    result_file.write_text(json.dumps({**result, "best": {"step": 6, "metrics": {"perplexity": 12.5, "loss": "inf"}}}))
    (tmp_path / "README.md").write_text(model_card("model", checkpoint, exported, "unknown"))
    assert results_in(tmp_path / "README.md") == {("valid", "perplexity", result["protocol"]): 12.5}
    assert "| valid | 12.5 | inf |" in (tmp_path / "README.md").read_text()
    result_file.unlink()
    assert "not finished" in model_card("model", checkpoint, exported, "unknown")
    (tmp_path / "run" / "eval-final-test.json").write_text("{")
    with pytest.raises(DataError, match=r"eval-final-test\.json is not JSON"):
        model_card("model", checkpoint, exported, "unknown")


def test_it_says_which_weights_a_run_began_with_and_what_its_data_stand_in_for(model: Path, tmp_path: Path):
    article = " = Title = \n" + "A few words of an article, and more of them.\n" * 3
    (tmp_path / "train.txt").write_text(article * 9)
    (tmp_path / "valid.txt").write_text(article)
    store = prepare("enwiki", tmp_path / "store", tokenizer="byte", source=tmp_path)
    settings = [f"model.init={model}", f"data.store={store}", "data.sequence_length=32", "optim.warmup_steps=0"]
    settings += ["train.steps=1", "train.batch_size=2", "train.device=cpu"]
    command("train", "lm/enwiki", "--out", tmp_path / "run", *settings)
    command("export", tmp_path / "run", "--out", tmp_path / "model")
    text = (tmp_path / "model" / "README.md").read_text()
    began = json.loads((tmp_path / "run" / "init.json").read_text())
    assert f"| began with | `my model`, sha256 `{began['sha256']}` |" in text
    assert "**enwiki (stand-in)**" in text
    assert "stands in for WikiText-103" in text
    assert "preset `None`" not in text
    assert str(model.parent) not in text
    assert ModelCard(text).data.eval_results[0].dataset_name == "enwiki (stand-in)"


def test_a_folder_of_no_run_has_a_card_that_says_so(model: Path, tmp_path: Path):
    shutil.copytree(model, tmp_path / "model")
    command("export", tmp_path / "model", "--out", tmp_path / "again")
    card = (tmp_path / "again" / "README.md").read_text()
    assert card.count("exported from a folder of no run") == 2
    assert results_in(tmp_path / "again" / "README.md") == {}
    assert ModelCard(card).data.license == "unknown"


@pytest.mark.parametrize(("name", "is_fixed"), [("t2-tiny", True), ("vanilla-tiny", False), ("flash_quad-tiny", False)])
def test_only_a_state_of_fixed_size_is_called_one(name: str, is_fixed: bool, tmp_path: Path):
    preset(name).save_pretrained(tmp_path)
    exported = {"architecture": "TransNormerForCausalLM", "loads with": "transformers.AutoModelForCausalLM"}
    exported |= {"parameters": "1", "dtype": "float32", "tokenizer": "none"}
    assert ("fixed size" in model_card("model", tmp_path, exported, "unknown")) == is_fixed


def test_data_that_moved_are_known_by_their_digest(run: Path, tmp_path: Path):
    shutil.copytree(run, tmp_path / "run")
    recorded = json.loads((run / "data.json").read_text())
    (tmp_path / "run" / "data.json").write_text(json.dumps({**recorded, "store": "/elsewhere/books"}))
    command("export", tmp_path / "run", "--out", tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "store `books`, no longer in its place" in card
    assert recorded["digest"] in card
    assert "/elsewhere" not in card

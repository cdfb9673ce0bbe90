"""A saved folder serves those who do not import us, lm-eval among them; and we run no code that a folder brings."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from harness_task import NAME, write_task
from tiny_run import tiny_config
from token_store import new_store
from transformers import AutoModelForCausalLM, pipeline

import transnormer as tn
from transnormer.data.tokenizers import byte_tokenizer, load_tokenizer
from transnormer.errors import DataError
from transnormer.generate.load import load_causal_lm
from transnormer.generate.stream import stream_text
from transnormer.models.export import export_model
from transnormer.models.hub import AUTO_MAP
from transnormer.train.loop import evaluate_run, train

WINDOW = 32
TEXT = " ".join(f"{number * number % 97} cats and {number} dogs" for number in range(1, 200))[: 60 * WINDOW]

# What a user runs who has the package installed and never imports it. lm-eval's own tasks, thousands, are left alone.
USER = f"""
import json, math, sys
import lm_eval, torch
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

folder, task, again = sys.argv[1:]
loaded = lm_eval.simple_evaluate(
    model="hf",
    model_args={{"pretrained": folder, "trust_remote_code": True, "max_length": {WINDOW}}},
    tasks=["{NAME}"],
    task_manager=TaskManager(include_path=task, include_defaults=False),
    device="cpu", batch_size=4, bootstrap_iters=0,
)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
model.save_pretrained(again)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
writer = pipeline("text-generation", model=again, tokenizer=tokenizer, trust_remote_code=True)
print(json.dumps({{
    "bits_per_byte": loaded["results"]["{NAME}"]["bits_per_byte,none"],
    "class": type(model).__module__ + "." + type(model).__name__,
    "logits": model(torch.arange(100)[None]).logits.double().abs().sum().item(),
    "text": writer("7 cats", max_new_tokens=5, do_sample=False)[0]["generated_text"],
}}))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose validation split is the text behind an end-of-text token, which lm-eval puts before a document."""
    folder = tmp_path_factory.mktemp("harness")
    tokenizer = byte_tokenizer()
    ids = np.frombuffer(TEXT.encode(), dtype=np.uint8).astype(np.int64)
    with new_store(folder / "store", tokenizer=tokenizer) as writer:
        writer.append("train", ids, len(ids))
        writer.append("valid", np.concatenate([[tokenizer.eos_token_id], ids]), len(ids))
    train(
        tiny_config(folder / "store", data__eval_windows=None, data__sequence_length=WINDOW), folder / "run", show=False
    )
    return folder / "run"


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "model"
    export_model(run / "final", folder)
    return folder


@pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed: pip install 'transnormer[harness]'"
)
def test_lm_eval_scores_as_we_do_and_nobody_imports_us(run: Path, exported: Path, tmp_path: Path):
    write_task(tmp_path, TEXT)
    (tmp_path / "user.py").write_text(USER)
    root = str(Path(tn.__file__).parents[1])
    # Caches of datasets and of the copied loader file go where they are removed again.
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "PYTHONPATH": root}
    command = [sys.executable, str(tmp_path / "user.py"), str(exported), str(tmp_path), str(tmp_path / "again")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["class"] == "transnormer.models.heads.TransNormerForCausalLM"
    # A byte is a token here, so that bits per byte are those per token. Windows are full: an incomplete last one would
    # see more context in lm-eval.
    ours = evaluate_run(run, "valid")["metrics"]["perplexity"]
    assert 2 ** found["bits_per_byte"] == pytest.approx(ours, rel=1e-5)
    assert ours < 0.8 * 259  # it has learned something, so that a lost context would show
    model, tokenizer = load_causal_lm(exported, "cpu")
    assert found["logits"] == pytest.approx(model(torch.arange(100)[None]).logits.double().abs().sum().item(), rel=1e-6)
    ids = torch.tensor([tokenizer.encode("7 cats", add_special_tokens=False)])
    assert found["text"] == tokenizer.decode(model.generate(ids, max_new_tokens=5, do_sample=False)[0])
    assert not math.isnan(found["bits_per_byte"])


def test_the_exported_tokenizer_does_not_keep_how_it_was_loaded(exported: Path):
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    assert {"local_files_only", "is_local"}.isdisjoint(settings)
    assert settings["eos_token"] == "<eos>"


def test_an_empty_prompt_begins_as_with_our_command(exported: Path):
    model, tokenizer = load_causal_lm(exported, "cpu")
    pieces: list[str] = []
    stream_text(model, tokenizer, "", 8, pieces.append)
    write = pipeline("text-generation", model=AutoModelForCausalLM.from_pretrained(exported), tokenizer=tokenizer)
    assert write("", max_new_tokens=8, do_sample=False)[0]["generated_text"] == "".join(pieces)


def test_every_class_of_the_auto_map_is_ours(exported: Path):
    config = json.loads((exported / "config.json").read_text())
    assert config["auto_map"] == AUTO_MAP
    loader = importlib.util.spec_from_file_location("modeling_transnormer", exported / "modeling_transnormer.py")
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    for reference in AUTO_MAP.values():
        file, _, name = reference.partition(".")
        assert (exported / f"{file}.py").is_file()
        assert getattr(module, name) is getattr(tn, name)


def test_without_the_package_the_loader_says_what_to_install(exported: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transnormer", None)
    with pytest.raises(ImportError, match=r"needs the package transnormer: run `pip install \.`"):
        exec((exported / "modeling_transnormer.py").read_text(), {})


@pytest.mark.parametrize("model_type", ["transnormer", "somebody-elses"])
def test_our_commands_run_no_code_of_a_folder(exported: Path, tmp_path: Path, model_type: str):
    """Not where a folder's file was exchanged, nor where its model or tokenizer is another's; and nobody is asked."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in exported.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    trap = tmp_path / "trap"
    (folder / "modeling_transnormer.py").write_text(f"open({str(trap)!r}, 'w')\nTransNormerForCausalLM = None\n")
    config = {**json.loads((folder / "config.json").read_text()), "model_type": model_type}
    (folder / "config.json").write_text(json.dumps(config))
    if model_type == "transnormer":
        load_causal_lm(folder, "cpu")
        export_model(folder, tmp_path / "out")
    else:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings |= {"tokenizer_class": "Trap", "auto_map": {"AutoTokenizer": ["modeling_transnormer.Trap", None]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        for load in (lambda: load_causal_lm(folder, "cpu"), lambda: export_model(folder, tmp_path / "out")):
            with pytest.raises(DataError, match="cannot be loaded"):
                load()
        with pytest.raises(DataError, match="broken tokenizer"):
            load_tokenizer(folder)
    assert not trap.exists()

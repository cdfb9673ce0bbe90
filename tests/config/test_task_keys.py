"""A task owns its keys: those of another task are refused, with the name of whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from transnormer.config.load import dump_config, load_config
from transnormer.config.schema import RunConfig
from transnormer.errors import ConfigError


@pytest.mark.parametrize("override", ["lra.limit_examples=9", "lra.valid_examples=9", "lra.protocol=skyformer"])
def test_keys_of_another_task_are_refused(override: str) -> None:
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=f"{key}: is a key of the lra tasks, the task is causal_lm"):
        load_config("demo", [override])
    load_config("lra/text", [override])


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("corpus", "text", "leave it out"),
        ("tokenizer", "byte", "leave it out"),
        ("vocab_size", 9, "leave it out"),
        ("limit_bytes", 9, "leave it out"),
        ("sequence_length", 64, "leave it out"),
        ("eval_windows", 9, "write lra.valid_examples=9"),
    ],
)
def test_keys_of_a_corpus_have_no_meaning_for_lra(key: str, value: object, hint: str) -> None:
    message = f"data.{key}: has no meaning for lra/text, it is a key of tasks that read a corpus"
    with pytest.raises(ConfigError, match=message) as caught:
        load_config("lra/text", [f"data.{key}={value}"])
    assert caught.value.hint == hint
    load_config("demo", [f"data.{key}={value}"])


def test_another_task_in_an_override_takes_its_keys_along() -> None:
    config = load_config("demo", ["task=lra/listops", "data.sequence_length=512", "data.eval_windows=null"])
    assert config.lra.protocol == "skyformer"
    with pytest.raises(ConfigError, match=r"lra\.valid_examples: is a key of the lra tasks"):
        load_config("lra/retrieval", ["task=causal_lm"])


def test_a_config_is_written_with_the_keys_of_its_task_alone(tmp_path: Path) -> None:
    assert "lra:" not in dump_config(RunConfig())
    config = load_config("lra/text", ["lra.valid_examples=9"])
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert "lra:\n  protocol: skyformer\n  limit_examples: null\n  valid_examples: 9\n" in path.read_text()
    assert load_config(path) == config

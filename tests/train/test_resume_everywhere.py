"""A masked model, GLUE and the Arena, stopped after any step: as bit-exact as a causal model (test_loop.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from lra_files import lra_config
from tiny_run import STEPS, evaluations, losses, stop_at, tiny_config, weights_hash

from transnormer.config.load import load_config
from transnormer.config.schema import RunConfig
from transnormer.errors import Preempted
from transnormer.train.loop import resume, train

Find = Callable[[str], Path]


def glue_config(store: Path) -> RunConfig:
    model = ["model.hidden_size=16", "model.num_attention_heads=2", "model.num_hidden_layers=2"]
    length = ["glue.epochs=2.4", "train.batch_size=8", "train.micro_batch_size=4"]  # 12 steps of 40 examples
    pace = ["train.save_every=5", "train.eval_every=6", "train.log_every=1", "train.device=cpu"]
    return load_config("glue/sst2", [f"data.store={store}", *model, *length, *pace])


@pytest.fixture(params=["masked_lm", "glue/sst2", "lra/listops"])
def config(request: pytest.FixtureRequest, store: Path, glue_store: Find, lra_store: Find) -> RunConfig:
    if request.param == "masked_lm":
        return tiny_config(store, task="masked_lm")
    if request.param == "glue/sst2":
        return glue_config(glue_store("sst2"))
    return lra_config("lra/listops", lra_store("lra/listops"), train__steps=STEPS)


@pytest.mark.reliability("R4")
def test_resume_after_any_step_is_bit_exact(
    config: RunConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_full_figures: bool,
    count_cases: Callable[[int], None],
) -> None:
    whole = train(config, tmp_path / "whole", show=False)
    assert whole["steps"] == STEPS
    steps = range(1, STEPS + 1) if at_full_figures else (7,)
    count_cases(len(steps))
    for step in steps:
        run = tmp_path / f"run{step}"
        with monkeypatch.context() as patch:
            stop_at(patch, step)
            with pytest.raises(Preempted, match=f"after step {step}"):
                train(config, run, show=False)
        result = resume(run, show=False)
        assert weights_hash(run) == weights_hash(tmp_path / "whole")
        assert losses(run) == losses(tmp_path / "whole")
        assert evaluations(run) == evaluations(tmp_path / "whole")
        assert result["metrics"] == whole["metrics"]
        assert result.get("test") == whole.get("test")

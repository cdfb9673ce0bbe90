"""Processes (gloo) that share the weights (FSDP) learn what one learns, and hand it on to any number, and to DDP."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from real_runs import Case, Forks
from safetensors import safe_open
from tiny_run import journal_lines, losses, tiny_config, tiny_store

from transnormer.config.load import dump_config
from transnormer.errors import ConfigError
from transnormer.train import checkpoint
from transnormer.train.loop import rehearse

FSDP, DDP = "train.parallel=fsdp", "train.parallel=ddp"


@pytest.fixture(params=["causal_lm", "masked_lm"])
def case(forks: Forks, scratch: Path, request: pytest.FixtureRequest) -> Case:
    """No dropout, whose masks depend on the rank; a batch that neither ranks nor micro-batches divide evenly."""
    changes = {"model__dropout": 0.0, "train__batch_size": 5, "train__log_layer_gradients": True}
    config = tiny_config(tiny_store(scratch), task=request.param, **changes)
    recipe = scratch / "recipe.yaml"
    recipe.write_text(dump_config(config))
    case = Case(forks, recipe, scratch / "one", scratch / "sharded")
    assert forks.run("train", recipe, "--out", case.undisturbed) == 0, forks.output
    return case


only_causal = pytest.mark.parametrize("case", ["causal_lm"], indirect=True)


def contents(folder: Path) -> dict[str, object]:
    """Every file of a model folder but the hashes: tensors by name, dtype and shape, all else as it is."""
    found: dict[str, object] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                found[path.name] = (
                    file.metadata(),
                    {name: (value.dtype, value.shape) for name, value in tensors.items()},
                )
        elif path.name not in ("manifest.json", "state.json"):
            found[path.name] = path.read_text()
    return found


@pytest.mark.reliability("R11")
@pytest.mark.parametrize("count", [2, 4])
def test_sharded_processes_give_the_loss_curve_of_one(case: Case, count: int) -> None:
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, FSDP, count=count)
    assert [case.forks.wait(pid) for pid in ranks] == [0] * count, case.forks.output
    case.require_same_curve()
    for part in ("final", "checkpoints/step-00000012"):
        assert contents(case.run / part) == contents(case.undisturbed / part)
    one, sharded = (json.loads((run / "result.json").read_text()) for run in (case.undisturbed, case.run))
    assert (sharded["processes"], sharded["tokens"]) == (count, one["tokens"])
    assert sharded["parameters"] == one["parameters"]
    assert case.forks.run("eval", case.run) == 0, case.forks.output


def stopped_in(case: Case, step: int, *arguments: str | Path, count: int) -> None:
    """Run until a step, then let a signal to the last rank stop all."""
    ranks = case.forks.start_ranks(*arguments, count=count, fault=("stop_at_step", {"step": step}))
    for pid in ranks:
        case.forks.wait_for_stop(pid)
    os.kill(ranks[-1], signal.SIGTERM)
    for pid in ranks:
        os.kill(pid, signal.SIGCONT)
    assert [case.forks.wait(pid) for pid in ranks] == [75] * count, case.forks.output
    assert losses(case.run)[-1][0] < 12


@pytest.mark.reliability("R11")
@only_causal
def test_a_run_is_handed_between_numbers_of_processes_and_kinds(case: Case) -> None:
    stopped_in(case, 2, "train", case.recipe, "--out", case.run, FSDP, count=2)
    assert case.resume() == 2  # its config still asks for shards
    assert "train.parallel=fsdp shares the weights between processes, and there is one" in case.forks.output
    stopped_in(case, 4, "resume", case.run, DDP, count=1)
    stopped_in(case, 6, "resume", case.run, FSDP, count=4)
    stopped_in(case, 8, "resume", case.run, DDP, count=2)
    stopped_in(case, 10, "resume", case.run, FSDP, count=2)
    assert case.forks.run("resume", case.run, DDP) == 0, case.forks.output
    case.require_same_curve()


@only_causal
def test_a_full_disk_ends_all_and_leaves_the_checkpoint_before(case: Case) -> None:
    fault = ("disk_full_at_save", {"run": str(case.run), "step": 6, "limit": 4096})
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, FSDP, "train.rank_timeout=60", fault=fault)
    assert [case.forks.wait(pid) for pid in ranks] == [6, 6], case.forks.output
    newest = checkpoint.list_checkpoints(case.run / "checkpoints")[-1]
    assert checkpoint.verify(newest)["step"] == 3
    assert case.forks.run("resume", case.run, DDP) == 0, case.forks.output
    case.require_same_curve()


def test_shards_need_several_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"and there is one .*train\.parallel=ddp"):
        rehearse(tiny_config(tiny_store(tmp_path), train__parallel="fsdp"))


@only_causal
def test_a_gradient_that_is_not_finite_in_one_shard_is_no_update_in_any(case: Case) -> None:
    """Poisoned is the last rank's part alone; the run goes back to step 3 and leaves the batch out, as one process."""
    changes = ("train.nonfinite=rewind", "train.parallel=fsdp", "train.gradient_checkpointing=true")
    fault = ("poison_shard", {"rank": 1, "step": 5})
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, *changes, fault=fault)
    assert [case.forks.wait(pid) for pid in ranks] == [0, 0], case.forks.output
    (event,) = journal_lines(case.run, "nonfinite")
    assert (event["step"], event["batch"], event["action"]) == (5, 4, "rewind")
    before, after = dict(losses(case.undisturbed)), losses(case.run)
    assert [step for step, _ in after] == list(range(1, 13))
    assert [loss for _, loss in after[:4]] == pytest.approx([before[step] for step in range(1, 5)], rel=1e-6)


@only_causal
@pytest.mark.parametrize(
    "other",
    [("train.context_parallel=2", "data.sequence_length=128"), ("train.execution=compile",)],
    ids=["context", "compile"],
)
def test_what_shards_cannot_be_combined_with_is_refused(case: Case, other: tuple[str, ...]) -> None:
    ranks = case.forks.start_ranks("train", case.recipe, "--out", case.run, FSDP, *other)
    assert [case.forks.wait(pid) for pid in ranks] == [2, 2]
    assert "has not been tested with" in case.forks.output
    assert not case.run.exists()

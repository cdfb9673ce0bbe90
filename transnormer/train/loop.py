"""The training loop: gradients, update, and at the step boundary evaluation, checkpoint, signals.

`train` starts a run, `rehearse` tells what would stop it, `resume` continues one, `evaluate_run` scores one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NoReturn

from transnormer.config.schema import RunConfig
from transnormer.environment import describe_process
from transnormer.errors import NonFiniteError, Preempted, command
from transnormer.journal import logged_tokens
from transnormer.models.presets import build_without_memory, without_memory
from transnormer.signals import EvaluationInterrupted, StopSignals, signals_afterwards
from transnormer.step.execution import choose_execution
from transnormer.step.schedules import learning_rate
from transnormer.step.training import StepOutcome
from transnormer.tasks.registry import find_data, settled
from transnormer.train.checkpoint import (
    Quarantined,
    Which,
    keep_best_and_last,
    list_checkpoints,
    restore,
    save_checkpoint,
    save_final,
    weights_folder,
)
from transnormer.train.context import require_pieces
from transnormer.train.continuation import changed_config, in_words, require_steps_left
from transnormer.train.learner import Learner, fitting_task
from transnormer.train.ranks import Ranks
from transnormer.train.recorder import Recorder, require_tensorboard
from transnormer.train.result import write_result
from transnormer.train.run_folder import RunFolder
from transnormer.train.state import Best, RunState

_SPLIT = "valid"  # what a run is evaluated on while it trains
_STRIDE_SECONDS = 1.0
_PROMISE = "stopping after this step, which is saved; a second time ends at once, and nothing is saved"
_PREPARATION = {
    "eager": None,  # nothing that takes time
    "compile": "compiling the step",
    "cuda_graph": "compiling the step and recording it as a CUDA graph",
}


def train(config: RunConfig, out: Path | str, *, show: bool | None = None) -> dict[str, Any]:
    """Run a config from its first step into a new folder and return the result.

    `show`: None shows a bar on a terminal and lines elsewhere, True a bar in any case, False nothing.
    """
    folder, ranks = RunFolder(Path(out)), _ranks(config)
    ranks.on_main(folder.require_new)
    if config.train.tensorboard:
        require_tensorboard()
    config = settled(config)
    learner = Learner(config, ranks)  # before the folder exists: a config that cannot be built leaves nothing behind
    learner.take_initial()
    ranks.on_main(folder.create)
    with _as_only_writer(folder, ranks), _stop_signals(ranks, show) as signals:  # now there is something to resume
        ranks.on_main(lambda: folder.begin(config, learner.task.store, learner.initial_facts))
        with closing(Recorder(config, folder, active=ranks.is_main, show=show)) as recorder:
            return _finish(Loop(folder, learner, recorder, RunState(), signals))


def rehearse(config: RunConfig, out: Path | str | None = None) -> RunConfig:
    """Raise what `train` would before its first step, or return the config of the run; create nothing.

    Data without a store are not prepared: then only their keys and source files are looked at, not what is in them.
    """
    ranks = _ranks(config)
    if out is not None:
        ranks.on_main(RunFolder(Path(out)).require_new)
    if config.train.tensorboard:
        require_tensorboard()
    if config.data.store is None:
        find_data(config)
        choose_execution(config.train, ranks.device, ranks.world_size)
        build_without_memory(config.model)
        return config
    config = settled(config)
    choose_execution(config.train, ranks.device, ranks.world_size)
    task = fitting_task(config, ranks)
    with without_memory():
        task.build_model()
    if config.model.init is not None:
        Learner(config, ranks).take_initial()
    return config


def resume(out: Path | str, overrides: Sequence[str] = (), *, show: bool | None = None) -> dict[str, Any]:
    """Continue a run from its newest valid checkpoint and return the result; a finished run only says so.

    `overrides` are keys that may change on the way (`continuation`), above all train.steps, which makes a finished run
    go on. Its result and final weights stay until there are new ones.
    """
    folder = RunFolder(Path(out))
    before, config = folder.read_config(), changed_config(folder, overrides)
    result = folder.read_result()
    if result is not None and result["steps"] == config.train.steps:
        if show is not False:
            print(f"{folder.path} is finished after {result['steps']} steps, there is nothing to resume")
        return result
    folder.require_store(config)
    ranks = _ranks(config, folder.recorded_threads())
    with _as_only_writer(folder, ranks) as stale_holder:
        learner = Learner(config, ranks)
        ranks.on_main(lambda: folder.require_data(learner.task.store))
        ranks.on_main(lambda: folder.tidy(before, learner.task.store))
        with signals_afterwards():
            state, quarantined = restore(folder, learner)
        require_steps_left(folder, config, state.step, finished=result is not None)
        changes = in_words(before, config, state.step)
        lost_lines = ranks.on_main(lambda: logged_tokens(folder.journal_file, state.step)) != state.logged_tokens
        with (
            closing(Recorder(config, folder, active=ranks.is_main, show=show)) as recorder,
            _stop_signals(ranks, show) as signals,
        ):
            loop = Loop(folder, learner, recorder, state, signals)
            if lost_lines:
                recorder.event("lost", f"the journal ends before step {state.step}: the lines up to there are lost")
            if stale_holder:
                recorder.event("takeover", f"took over the lock of {stale_holder}, which is gone")
            loop.note_quarantined(quarantined)
            origin = describe_process() if ranks.is_main else {}
            recorder.event("resumed", f"resumed after step {state.step}", step=state.step, **origin)
            for line in changes:
                recorder.event("changed", line, step=state.step)
            ranks.on_main(lambda: folder.take_up(config, changes, learner.initial_facts))
            return _finish(loop)


def _ranks(config: RunConfig, recorded_threads: int | None = None) -> Ranks:
    """The processes of a run, once it is known that they can share its sequences as they are asked to."""
    require_pieces(config)
    return Ranks(config.train, recorded_threads)


def _stop_signals(ranks: Ranks, show: bool | None) -> StopSignals:
    """Of several processes one answers, and none where nothing is to be shown."""
    return StopSignals(_PROMISE if ranks.is_main and show is not False else "")


def load_run(out: Path | str, checkpoint: Which) -> tuple[Learner, int]:
    """The final, best or last weights of a run, ready to be scored or asked, and the step they are of."""
    folder = RunFolder(Path(out))
    config = folder.read_config()
    folder.require_store(config)
    weights, step = weights_folder(folder, checkpoint)
    # One pass over a split is done before anything is compiled, and a run made on a GPU may be scored without one.
    train = config.train.model_copy(update={"execution": "eager", "context_parallel": 1, "parallel": "ddp"})
    learner = Learner(config.model_copy(update={"train": train}), Ranks(train))
    learner.ranks.on_main(lambda: folder.require_data(learner.task.store))
    learner.load_model(weights)
    return learner, step


def evaluate_run(out: Path | str, split: str = _SPLIT, checkpoint: Which = "final") -> dict[str, Any]:
    """Score the final, best or last weights of a run on a split of its data."""
    learner, step = load_run(out, checkpoint)
    sums = learner.reduce(learner.evaluate(split))
    return {
        "run": str(Path(out)),
        "checkpoint": checkpoint,
        "step": step,
        "split": split,
        "protocol": learner.task.protocol,
        **learner.task.facts(split, sums),
        "metrics": learner.task.metrics(sums),
    }


class Loop:
    """Steps from `state` to the last one; whatever ends it early leaves a run folder that `resume` continues."""

    def __init__(
        self, folder: RunFolder, learner: Learner, recorder: Recorder, state: RunState, signals: StopSignals
    ) -> None:
        self.folder, self.learner, self.recorder, self.signals = folder, learner, recorder, signals
        self.config, self.ranks = learner.config, learner.ranks
        self._saved: int | None = None
        self._seconds_per_step: float | None = None
        self._stand_at(state)

    def run(self) -> None:
        """Gradients, then an update if they are finite, until the last step."""
        if self.state.step < self.config.train.steps:
            self.recorder.say(self.learner.describe())
            if self.state.step == 0 and self.learner.initial:
                self.recorder.event("init", self.learner.origin, sha256=self.learner.initial.sha256)
            with self.recorder.preparing(_PREPARATION[self.learner.execution.name]):
                self.learner.prepare()
        while True:
            self.at_boundary()
            if self.state.step == self.config.train.steps:
                return
            began = time.perf_counter()
            batches = self.state.next_batches(self._stride())
            outcomes = self.learner.advance(self.state.step, batches)
            seconds = (time.perf_counter() - began) / len(outcomes)
            self._seconds_per_step = seconds
            for batch, outcome in zip(batches, outcomes, strict=False):  # a non-finite one ends the outcomes early
                if not outcome.finite:
                    self.on_nonfinite(batch, outcome)
                    break
                self.state.advance(batch, outcome.tokens, seconds)
                self.log(outcome)

    def at_boundary(self) -> None:
        """Between two steps: evaluate and save where due, and stop if a signal asked for it."""
        if self.evaluation_due and not self.stopping and self.check_weights():
            self.evaluate()
        stopping = self.stopping
        if (stopping or self.save_due) and self.check_weights():
            self.save()
        if stopping:
            self._preempted()

    @property
    def evaluation_due(self) -> bool:
        """Every `eval_every` steps and at the end, unless it is already in the journal."""
        return self.state.evaluated < self.state.step and self._is_due(self.config.train.eval_every)

    @property
    def save_due(self) -> bool:
        """Every `save_every` steps, at the end, and wherever the best evaluation so far was made."""
        is_best = self.state.best is not None and self.state.best.step == self.state.step
        return self.state.step > 0 and (is_best or self._is_due(self.config.train.save_every))

    @property
    def stopping(self) -> bool:
        """Whether some rank has received a signal."""
        return self.ranks.any(self.signals.received is not None)

    def check_weights(self) -> bool:
        """Whether the weights are finite; if not, the run stops here or stands at an older, finite checkpoint."""
        if self.learner.is_finite():
            return True
        self.on_nonfinite(self.state.last_batch, None)
        return False

    def evaluate(self) -> None:
        """Score the current weights; an evaluation that a signal cuts short is made again after resuming."""
        sums: dict[str, float] = {}
        try:
            with self._interrupting_evaluation():
                sums = self.learner.evaluate(_SPLIT)
        except EvaluationInterrupted:
            sums = {}
        if self.ranks.any(not sums):
            return
        metrics = self.learner.reduce_metrics(sums)
        state, task = self.state, self.learner.task
        state.evaluated, state.metrics = state.step, metrics
        value = metrics[task.primary_metric]
        sign = 1 if task.higher_is_better else -1
        if math.isfinite(value) and (state.best is None or sign * value > sign * state.best.value):
            state.best = Best(state.step, task.primary_metric, value, metrics)
        self.recorder.evaluation(state.step, _SPLIT, metrics)

    def test(self) -> dict[str, Any] | None:
        """Where the task asks for it, score its test split with the best checkpoint, whose weights stay in place."""
        split = self.learner.task.test_split
        if split is None or self.state.best is None:  # no score was ever finite
            return None
        weights, step = weights_folder(self.folder, "best")
        self.learner.load_model(weights)
        sums: dict[str, float] = {}
        with suppress(EvaluationInterrupted), self._interrupting_evaluation():
            sums = self.learner.evaluate(split)
        if self.ranks.any(not sums):
            self._preempted()
        return {"split": split, "step": step, "metrics": self.learner.reduce_metrics(sums)}

    def save(self) -> None:
        """Commit a checkpoint of this step if there is none yet, and only then let older ones go."""
        if self._saved != self.state.step:
            self.recorder.sync()
            self.ranks.on_main(self.learner.task.store.require_unchanged)  # what other data taught is not kept
            self.learner.save_from_all(lambda: save_checkpoint(self.folder, self.learner, self.state))
            self._saved = self.state.step
        self.ranks.on_main(lambda: keep_best_and_last(self.folder, self.config, self.state))

    def log(self, outcome: StepOutcome) -> None:
        """One line of the journal every `log_every` steps and at the end; the steps between are only shown."""
        state = self.state
        due = self._is_due(self.config.train.log_every)
        line = {
            "step": state.step,
            "loss": outcome.loss,
            "lr": learning_rate(self.config.optim, self.config.train.steps, state.step - 1),
            "grad_norm": outcome.grad_norm,
            **({"layer_grad_norms": outcome.layer_grad_norms} if outcome.layer_grad_norms else {}),
            "tokens": state.tokens,
            "tokens_per_second": state.rate_since_last_line(start_anew=due),
            "seconds": state.seconds,
        }
        if due:
            self.recorder.train(line)
        else:
            self.recorder.step(line)

    def on_nonfinite(self, batch: int, outcome: StepOutcome | None) -> None:
        """Stop, leave the step without an update, or go back to the newest checkpoint and leave the batch out.

        Without an `outcome` it is the weights that are no longer finite: then there is no update left to skip.
        """
        train, state = self.config.train, self.state
        state.nonfinite += 1
        action = train.nonfinite
        if state.nonfinite > train.nonfinite_limit or (action == "skip" and outcome is None):
            action = "stop"
        step = state.step + 1 if outcome else state.step
        found = f"loss {outcome.loss}, gradient norm {outcome.grad_norm}" if outcome else "weights after the update"
        text = f"non-finite at step {step}: {found} (batch {batch}, number {state.nonfinite} of this run): {action}"
        self.recorder.event("nonfinite", text, step=step, batch=batch, action=action, found=found)
        if action == "stop":
            saved = list_checkpoints(self.folder.checkpoints)
            raise NonFiniteError(
                text,
                hint="lower optim.lr, set optim.clip_norm, or set train.nonfinite to skip or rewind in a new run; "
                + (f"the newest checkpoint, {saved[-1]}, is finite" if saved else "there is no checkpoint yet"),
            )
        if action == "skip":
            state.step += 1
            return
        restored, quarantined = restore(self.folder, self.learner)
        restored.nonfinite, restored.excluded = state.nonfinite, [*state.excluded, batch]
        self._stand_at(restored)
        self.note_quarantined(quarantined)

    def note_quarantined(self, quarantined: list[Quarantined]) -> None:
        """Say which checkpoints were found broken, and why."""
        for item in quarantined:
            self.recorder.event("quarantined", item.text)

    def _stand_at(self, state: RunState) -> None:
        """Begin, or begin again, after `state.step` steps."""
        self.state = state
        self._saved = state.step if state.step > 0 else None
        self.recorder.begin(state.step, state.evaluated)

    def _interrupting_evaluation(self) -> AbstractContextManager[None]:
        """Where ranks gather weights at each pass, one that left an evaluation alone would leave the others waiting."""
        return nullcontext() if self.learner.sharded else self.signals.interrupting_evaluation()

    def _preempted(self) -> NoReturn:
        name = self.signals.received.name if self.signals.received else "a signal to another process"
        raise Preempted(
            f"stopped by {name} after step {self.state.step}, which is saved",
            hint=f"continue with `{command('resume', self.folder.path)}`",
        )

    def _stride(self) -> int:
        """Steps of a graph until something else is due, at most a second of them: signals wait no longer."""
        if self.learner.execution.name != "cuda_graph" or self._seconds_per_step is None:
            return 1
        train, step = self.config.train, self.state.step
        to_next = [every - step % every for every in (train.log_every, train.eval_every, train.save_every)]
        return min(*to_next, train.steps - step, max(1, int(_STRIDE_SECONDS / self._seconds_per_step)))

    def _is_due(self, every: int) -> bool:
        return self.state.step > 0 and (self.state.step % every == 0 or self.state.step == self.config.train.steps)


def _finish(loop: Loop) -> dict[str, Any]:
    """Run the loop to its end and write what a finished run has."""
    loop.run()
    loop.learner.save_from_all(lambda: save_final(loop.folder, loop.learner, loop.state), optimizer=False)
    test = loop.test()
    return loop.ranks.on_main(lambda: write_result(loop.folder, loop.learner, loop.state, test))


@contextmanager
def _as_only_writer(folder: RunFolder, ranks: Ranks) -> Iterator[str | None]:
    """The main process holds the run's lock for all ranks; yields whom a stale lock belonged to."""
    # Inside, collectives are also made by the model and by torch; whoever waits there in vain is told for whom.
    with ExitStack() as stack, ranks.naming_the_missing():
        yield ranks.on_main(lambda: stack.enter_context(folder.lock()))

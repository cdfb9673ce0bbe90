"""The speed benchmark: what is tried, in which order, and that a row says what it came to and why."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from transnormer.bench import speed, speed_measurement
from transnormer.bench.ops import GateFailed
from transnormer.bench.speed import executions_of
from transnormer.bench.speed_measurement import OUT_OF_MEMORY, Measurement
from transnormer.bench.worker import WorkerLost
from transnormer.errors import ConfigError
from transnormer.step.execution import CannotRun, Execution

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GRAPH, GRAPH_OF_EAGER, COMPILE, EAGER = executions_of("cuda_graph", CUDA)
ON_CPU = {name: Execution(name, CPU) for name in ("compile", "eager")}
WANTED = Measurement("skyformer", "t2", 64, "train", GRAPH)


def test_what_each_execution_tries():
    assert executions_of("eager", CPU) == (ON_CPU["eager"],)
    assert executions_of("compile", CPU) == (ON_CPU["compile"], ON_CPU["eager"])
    names = ["cuda_graph", "cuda_graph of eager kernels", "compile", "eager"]
    assert list(map(str, executions_of("cuda_graph", CUDA))) == names


def test_executions_that_cannot_be_are_errors_before_anything_runs():
    with pytest.raises(ConfigError, match=r"none on the CPU.*use --device cuda"):
        next(speed.measure_speed("skyformer", ["t2"], [64], CPU, execution="cuda_graph"))
    with pytest.raises(ConfigError, match="none on the CPU"):
        speed.describe("skyformer", CPU, execution="cuda_graph")


class FakeWorker:
    """Runs here, counts restarts, and gives up what it is told to give up."""

    def __init__(self, slow: tuple[Execution, ...] = ()) -> None:
        self.restarts, self.slow, self.limits = 0, slow, {}

    def run(self, function, wanted, limit=None):
        self.limits[wanted.execution] = limit
        if wanted.execution in self.slow:
            raise WorkerLost("took more than 5 s")
        return function(wanted)

    def restart(self):
        self.restarts += 1


def bench(monkeypatch, problems, *, slow=()):
    tried, notes, worker = [], [], FakeWorker(slow)

    def measure(wanted):
        tried.append(wanted.execution)
        if (problem := problems.get(wanted.execution)) is not None:
            raise problem
        return {"steps_per_second": 2.0, "peak_bytes": None}

    monkeypatch.setattr(speed, "measure", measure)
    executions = executions_of("cuda_graph", CUDA)
    return speed._Bench(executions, worker, 5.0, notes.append, {}), tried, notes, worker


def test_the_best_execution_that_works_is_taken_and_the_row_says_why_not_a_better_one(monkeypatch):
    problems = {GRAPH: CannotRun("does not compile: X"), GRAPH_OF_EAGER: CannotRun("waits for the GPU: Y")}
    subject, tried, notes, worker = bench(monkeypatch, problems, slow=(COMPILE,))
    row = subject.best(WANTED)
    assert row == {
        "train_execution": "eager",
        "train_steps_per_second": 2.0,
        "train_peak_bytes": None,
        "train_instead_of": {
            "cuda_graph": "does not compile: X",
            "cuda_graph of eager kernels": "waits for the GPU: Y",
            "compile": "took more than 5 s",
        },
    }
    assert tried == [GRAPH, GRAPH_OF_EAGER, EAGER]
    assert worker.restarts == 0
    assert worker.limits == {GRAPH: 5.0, GRAPH_OF_EAGER: 5.0, COMPILE: 5.0, EAGER: None}
    assert any("cuda_graph of eager kernels: waits for the GPU: Y" in note for note in notes)

    # What does not work at one length is not tried at the next, but said again.
    tried.clear()
    again = subject.best(Measurement("skyformer", "t2", 128, "train", GRAPH))
    assert tried == [EAGER]
    assert again["train_instead_of"] == row["train_instead_of"]
    # Inference is another matter.
    tried.clear()
    subject.best(Measurement("skyformer", "t2", 128, "inference", GRAPH))
    assert tried == [GRAPH, GRAPH_OF_EAGER, EAGER]


def test_the_execution_asked_for_needs_no_excuse(monkeypatch):
    subject, tried, _, _ = bench(monkeypatch, {})
    row = subject.best(WANTED)
    assert (row["train_execution"], tried) == ("cuda_graph", [GRAPH])
    assert "train_instead_of" not in row


def test_a_spoilt_process_is_left(monkeypatch):
    subject, _, _, worker = bench(monkeypatch, {GRAPH: CannotRun("cannot be captured: Z", spoilt=True)})
    assert subject.best(WANTED)["train_execution"] == "cuda_graph of eager kernels"
    assert worker.restarts == 1


def test_an_execution_that_gives_other_results_is_not_taken(monkeypatch):
    subject, _, _, _ = bench(monkeypatch, {GRAPH: GateFailed("t2: relative error 1"), GRAPH_OF_EAGER: None})
    row = subject.best(WANTED)
    assert row["train_execution"] == "cuda_graph of eager kernels"
    assert row["train_instead_of"] == {"cuda_graph": "t2: relative error 1"}


def test_memory_that_runs_out_ends_one_measurement_only(monkeypatch):
    full = CannotRun(OUT_OF_MEMORY)
    subject, tried, _, _ = bench(monkeypatch, dict.fromkeys(executions_of("cuda_graph", CUDA), full))
    row = subject.best(WANTED)
    assert row["train_failed"] == OUT_OF_MEMORY
    assert "train_execution" not in row
    subject.best(WANTED)
    assert len(tried) == 8


def test_a_wrong_compiled_step_is_not_timed(monkeypatch):
    """Compiled code that gives twice the logits, or twice the loss, is refused."""

    def miscompile(self, function):
        return function if function.__name__ == "_adamw" else lambda *arguments: 2 * function(*arguments)

    monkeypatch.setattr(Execution, "compile", miscompile)
    monkeypatch.setattr(speed_measurement.Training, "_check_gradients", lambda *_: None)
    for kind in speed_measurement.KINDS:
        with pytest.raises(GateFailed, match=f"t2, {kind} as compile: relative error 1.00e\\+00"):
            speed_measurement.measure(Measurement("skyformer", "t2", 64, kind, ON_CPU["compile"]))


@pytest.mark.usefixtures("forked_workers")
def test_a_compiled_run_in_its_own_process():
    """End to end, with the compiler switched off; a version of PyTorch that refuses that is met with eager."""
    notes = []
    rows = list(speed.measure_speed("skyformer", ["t2"], [64], CPU, execution="compile", limit=600, note=notes.append))
    (row,) = rows
    assert (row["method"], row["length"]) == ("t2", 64)
    assert row["train_steps_per_second"] > 0
    assert row["inference_steps_per_second"] > 0
    assert row["parameters"] == speed_measurement.parameters("skyformer", "t2", 64)
    for kind in speed_measurement.KINDS:
        assert (row[f"{kind}_execution"] == "eager") == (f"{kind}_instead_of" in row)
        assert f"t2  T=64  {kind}: compile ..." in notes


def test_language_models_are_timed_by_the_loss_they_are_trained_with():
    row = next(speed.measure_speed("tiny", ["t2"], [64], CPU))
    assert row["train_tokens_per_second"] == pytest.approx(64 * row["train_steps_per_second"])
    assert row["train_flops_per_step"] > 0
    assert row["train_utilisation"] is None  # no peak of a CPU is known
    assert "inference_tokens_per_second" not in row


def test_settings_say_the_execution():
    assert "a step is one CUDA graph" in speed.describe("paper", CUDA, execution="cuda_graph")["precision"]
    assert speed.describe("paper", CPU)["execution"] == "eager"


def test_compiled_code_that_loses_gradients_is_refused(monkeypatch):
    """The loss alone does not tell: it is right, and the model would not learn."""
    from transnormer.ops.rms_norm import saved_output

    # The compiler up to where it would write C++: it has made its own backward pass by then.
    monkeypatch.setattr(Execution, "compile", lambda self, function: torch.compile(function, backend="aot_eager"))
    wanted = Measurement("skyformer", "t2", 64, "train", ON_CPU["compile"])
    assert speed_measurement.measure(wanted)["steps_per_second"] > 0
    backward = saved_output._Normed.backward
    monkeypatch.setattr(
        saved_output._Normed, "backward", staticmethod(lambda ctx, *dy: (0 * backward(ctx, *dy)[0], None, None))
    )
    with pytest.raises(GateFailed, match=r"the gradient of .* has norm 0.00e\+00, in eager PyTorch"):
        speed_measurement.measure(wanted)


@pytest.mark.parametrize(
    ("compiled", "half", "exact", "refused"),
    [
        (1.0, 1.9, 0.9, False),
        (1.0, 3.0, 0.9, False),  # eager PyTorch rounds more of it
        (1.0, 3.0, 2.9, True),
        (3.0, 1.0, 2.0, False),  # or rounds it away
        (3.0, 1.0, 1.1, True),
        (0.0, 1.0, 0.9, True),
        (0.0, 0.009, 0.0, False),  # too small to count
    ],
)
def test_gradients_that_are_mostly_rounding_are_held_against_float32(compiled, half, exact, refused, monkeypatch):
    asked = []
    made = object.__new__(speed_measurement.Training)
    made.wanted = Measurement("tiny", "t2", 64, "train", ON_CPU["compile"])
    made.step, made.feeds, made.model = SimpleNamespace(loss="compiled"), None, None

    def norms(loss, feed, *, half=True):
        way = "compiled" if loss == "compiled" else "half" if half else "exact"
        asked.append(way)
        return {"large": 1.0, "small": sizes[way]}

    sizes = {"compiled": compiled, "half": half, "exact": exact}
    monkeypatch.setattr(made, "_gradient_norms", norms)
    if refused:
        with pytest.raises(GateFailed, match="the gradient of small has norm"):
            made._check_gradients({})
    else:
        made._check_gradients({})
    assert ("exact" in asked) == (refused or (not half / 2 <= compiled <= half * 2 and half > 0.01))


@pytest.mark.usefixtures("forked_workers")
def test_steps_are_prepared_side_by_side_and_measured_one_by_one():
    """In real processes, with the compiler switched off: every one once, in the order asked for."""
    notes = []
    options = {"execution": "compile", "limit": 600, "note": notes.append, "compile_jobs": 3}
    rows = list(speed.measure_speed("skyformer", ["t2", "vanilla"], [64, 128], CPU, **options))
    assert [(row["method"], row["length"]) for row in rows] == [
        (method, length) for method in ("t2", "vanilla") for length in (64, 128)
    ]
    assert all(row[f"{kind}_steps_per_second"] > 0 for row in rows for kind in speed_measurement.KINDS)
    assert sum(note.startswith("compiling ") for note in notes) == 3


class Crowd:
    """Benches that share a memory: a step holds its part from its preparation to its measurement."""

    def __init__(self, room: int) -> None:
        self.room, self.order = room, []

    def bench(self, size: int, prepares: bool = True):
        crowd = self

        class Bench:
            held = False

            def prepare(self, wanted):
                self.held = prepares
                crowd.room -= size if prepares else 0
                return prepares

            def best(self, wanted):
                crowd.order.append(wanted.method)
                if not self.held:
                    return {"train_execution": "cuda_graph"} if size <= crowd.room else {"train_failed": OUT_OF_MEMORY}
                self.held, fits = False, crowd.room >= 0
                crowd.room += size
                return {"train_execution": "cuda_graph"} if fits else {"train_failed": OUT_OF_MEMORY}

        return Bench()


@pytest.mark.parametrize(
    ("problem", "tried_again"), [(CannotRun("does not compile"), False), (CannotRun(OUT_OF_MEMORY), True)]
)
def test_what_cannot_be_compiled_is_tried_once(monkeypatch, problem, tried_again):
    def fails(wanted):
        raise problem

    taken, tried, notes, worker = bench(monkeypatch, {})
    monkeypatch.setattr(speed, "prepare", fails)
    assert not taken.prepare(WANTED)
    assert worker.restarts == 1
    row = taken.best(WANTED)
    assert (GRAPH in tried) == tried_again
    assert (row["train_execution"] == "cuda_graph") == tried_again
    assert any("not as cuda_graph: does not compile" in note for note in notes) != tried_again


def test_what_does_not_fit_beside_others_is_measured_alone():
    crowd = Crowd(room=10)
    group = [
        (Measurement("paper", "large", 64, "train", GRAPH), crowd.bench(8)),
        (Measurement("paper", "broken", 64, "train", GRAPH), crowd.bench(1, prepares=False)),
        (Measurement("paper", "small", 64, "train", GRAPH), crowd.bench(4)),
        (Measurement("paper", "huge", 64, "train", GRAPH), crowd.bench(11)),
    ]
    found = {one.method: numbers for one, numbers in speed._one_by_one(group, lambda text: None)}
    assert crowd.order == ["large", "small", "huge", "broken", "large", "small", "huge"]
    assert found == {
        "large": {"train_execution": "cuda_graph"},
        "broken": {"train_execution": "cuda_graph"},
        "small": {"train_execution": "cuda_graph"},
        "huge": {"train_failed": OUT_OF_MEMORY},
    }


def test_what_was_prepared_is_measured_as_it_is_and_nothing_else(monkeypatch):
    built = []

    def make(wanted):
        built.append(wanted)
        return SimpleNamespace(check=lambda: None, numbers=lambda: {"of": wanted})

    monkeypatch.setattr(speed_measurement, "_make", make)
    first, second = (Measurement("tiny", method, 64, "train", ON_CPU["eager"]) for method in ("t2", "vanilla"))
    speed_measurement.prepare(first)
    assert speed_measurement.measure(first)["of"] == first
    assert built == [first]
    speed_measurement.prepare(first)
    assert speed_measurement.measure(second)["of"] == second
    assert speed_measurement.measure(first)["of"] == first  # what was prepared in between is gone
    assert built == [first, first, second, first]

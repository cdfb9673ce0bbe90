"""Modes of the speed benchmark: what is tried, in which order, and that a row says what it came to and why."""

from __future__ import annotations

import pytest
import torch

from transnormer.bench import modes, speed, speed_cell
from transnormer.bench.modes import EAGER, CannotRun, Way, describe, ready, warm_up, ways_of
from transnormer.bench.ops import GateFailed
from transnormer.bench.speed_cell import OUT_OF_MEMORY, Cell
from transnormer.bench.worker import WorkerLost
from transnormer.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
GRAPH, GRAPH_OF_EAGER, COMPILE = Way("graph", True), Way("graph", False), Way("compile", True)
CELL = Cell("skyformer", CUDA, "t2", 64, "train")


def test_what_each_mode_tries():
    assert ways_of("eager", CPU) == (EAGER,)
    assert ways_of("compile", CPU) == (COMPILE, EAGER)
    assert ways_of("graph", CUDA) == (GRAPH, GRAPH_OF_EAGER, COMPILE, EAGER)
    assert list(map(str, ways_of("graph", CUDA))) == [
        "graph of compiled kernels",
        "graph of eager kernels",
        "compile",
        "eager",
    ]


def test_modes_that_cannot_be_are_errors_before_anything_runs():
    with pytest.raises(ConfigError, match=r"none on the CPU.*use --device cuda"):
        next(speed.measure_speed("skyformer", ["t2"], [64], CPU, mode="graph"))
    with pytest.raises(ConfigError, match="none on the CPU"):
        speed.describe("skyformer", CPU, mode="graph")
    with pytest.raises(ConfigError, match="did you mean 'graph'"):
        ways_of("graphs", CUDA)


class FakeWorker:
    """Runs here, counts restarts, and gives up what it is told to give up."""

    def __init__(self, slow: tuple[Way, ...] = ()) -> None:
        self.restarts, self.slow, self.limits = 0, slow, {}

    def run(self, function, cell, limit=None):
        self.limits[cell.way] = limit
        if cell.way in self.slow:
            raise WorkerLost("took more than 5 s")
        return function(cell)

    def restart(self):
        self.restarts += 1


def bench(monkeypatch, problems, *, slow=(), mode="graph"):
    tried, notes, worker = [], [], FakeWorker(slow)

    def measure(cell):
        tried.append(cell.way)
        if (problem := problems.get(cell.way)) is not None:
            raise problem
        return {"steps_per_second": 2.0, "peak_bytes": None}

    monkeypatch.setattr(speed, "measure_cell", measure)
    return speed._Bench(speed.ways_of(mode, CUDA), worker, 5.0, notes.append, {}), tried, notes, worker


def test_the_best_way_that_works_is_taken_and_the_row_says_why_not_a_better_one(monkeypatch):
    problems = {GRAPH: CannotRun("does not compile: X"), GRAPH_OF_EAGER: CannotRun("waits for the GPU: Y")}
    subject, tried, notes, worker = bench(monkeypatch, problems, slow=(COMPILE,))
    row = subject.best(CELL)
    assert row == {
        "train_mode": "eager",
        "train_compiled": False,
        "train_steps_per_second": 2.0,
        "train_peak_bytes": None,
        "train_instead_of": {
            "graph of compiled kernels": "does not compile: X",
            "graph of eager kernels": "waits for the GPU: Y",
            "compile": "took more than 5 s",
        },
    }
    assert tried == [GRAPH, GRAPH_OF_EAGER, EAGER]
    assert worker.restarts == 0
    assert worker.limits == {GRAPH: 5.0, GRAPH_OF_EAGER: 5.0, COMPILE: 5.0, EAGER: None}
    assert any("graph of eager kernels: waits for the GPU: Y" in note for note in notes)

    # What does not work at one length is not tried at the next, but said again.
    tried.clear()
    again = subject.best(Cell("skyformer", CUDA, "t2", 128, "train"))
    assert tried == [EAGER]
    assert again["train_instead_of"] == row["train_instead_of"]
    # Inference is another matter.
    tried.clear()
    subject.best(Cell("skyformer", CUDA, "t2", 128, "inference"))
    assert tried == [GRAPH, GRAPH_OF_EAGER, EAGER]


def test_a_graph_in_the_mode_asked_for_needs_no_excuse(monkeypatch):
    subject, tried, _, _ = bench(monkeypatch, {})
    row = subject.best(CELL)
    assert (row["train_mode"], row["train_compiled"], tried) == ("graph", True, [GRAPH])
    assert "train_instead_of" not in row


def test_a_spoilt_process_is_left(monkeypatch):
    subject, _, _, worker = bench(monkeypatch, {GRAPH: CannotRun("cannot be captured: Z", spoilt=True)})
    assert subject.best(CELL)["train_mode"] == "graph"
    assert worker.restarts == 1


def test_a_way_that_gives_other_results_is_not_taken(monkeypatch):
    subject, _, _, _ = bench(monkeypatch, {GRAPH: GateFailed("t2: relative error 1"), GRAPH_OF_EAGER: None})
    row = subject.best(CELL)
    assert (row["train_mode"], row["train_compiled"]) == ("graph", False)
    assert row["train_instead_of"] == {"graph of compiled kernels": "t2: relative error 1"}


def test_memory_that_runs_out_ends_one_cell_only(monkeypatch):
    full = CannotRun(OUT_OF_MEMORY)
    subject, tried, _, _ = bench(monkeypatch, dict.fromkeys(ways_of("graph", CUDA), full))
    row = subject.best(CELL)
    assert row["train_failed"] == OUT_OF_MEMORY
    assert "train_mode" not in row
    subject.best(CELL)
    assert len(tried) == 8


def test_compilation_errors_are_reasons_and_others_are_not():
    def broken():
        raise RuntimeError("first line\nsecond line")

    with pytest.raises(CannotRun, match=r"^does not compile: first line$"):
        warm_up(broken, COMPILE)
    with pytest.raises(RuntimeError, match="second line"):
        warm_up(broken, EAGER)


def test_reasons_name_the_place_in_this_package():
    with pytest.raises(ConfigError) as caught:
        __import__("transnormer").preset("t9-tiny")
    assert describe(caught.value).startswith("unknown preset 't9-tiny'")
    assert "(models/presets.py:" in describe(caught.value)


def test_a_step_that_waits_is_found_before_the_capture(monkeypatch):
    switched = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switched.append)
    monkeypatch.setattr(modes, "capture", lambda step, warmup: pytest.fail("captured"))

    def waiting():
        raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(CannotRun, match="waits for the GPU") as caught:
        ready(waiting, GRAPH)
    assert not caught.value.spoilt
    assert switched == ["error", "default"]


def test_a_failed_capture_spoils_the_process(monkeypatch):
    monkeypatch.setattr(modes, "require_no_waiting", lambda step: None)

    def fails(step, warmup):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(modes, "capture", fails)
    with pytest.raises(CannotRun, match="cannot be captured: operation not permitted") as caught:
        ready(lambda: None, GRAPH)
    assert caught.value.spoilt


def test_a_wrong_compiled_model_is_not_timed(monkeypatch):
    """Compiled code that gives twice the logits, or twice the loss, is refused."""

    def miscompile(model, **_):
        right = model.forward

        def wrong(**batch):
            out = right(**batch)
            out["logits"] = 2 * out.logits
            if out.loss is not None:
                out["loss"] = 2 * out.loss
            return out

        model._compiled_call_impl = wrong

    monkeypatch.setattr(torch.nn.Module, "compile", miscompile)
    for kind in speed_cell.KINDS:
        with pytest.raises(GateFailed, match=f"t2, {kind} as compile: relative error 1.00e\\+00"):
            speed_cell.measure_cell(Cell("skyformer", CPU, "t2", 64, kind, COMPILE))


def test_a_compiled_run_in_its_own_process(monkeypatch):
    """End to end, with the compiler switched off; a version of PyTorch that refuses that is met with eager."""
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    notes = []
    rows = list(speed.measure_speed("skyformer", ["t2"], [64], CPU, mode="compile", limit=100, note=notes.append))
    (row,) = rows
    assert (row["method"], row["length"]) == ("t2", 64)
    assert row["train_steps_per_second"] > 0
    assert row["inference_steps_per_second"] > 0
    assert row["parameters"] == speed_cell.parameters("skyformer", "t2", 64)
    for kind in speed_cell.KINDS:
        assert (row[f"{kind}_mode"] == "eager") == (f"{kind}_instead_of" in row)
        assert f"t2  T=64  {kind}: compile ..." in notes


def test_language_models_are_timed_by_the_loss_they_are_trained_with():
    row = next(speed.measure_speed("tiny", ["t2"], [64], CPU))
    assert row["train_tokens_per_second"] == pytest.approx(64 * row["train_steps_per_second"])
    assert row["train_flops_per_step"] > 0
    assert row["train_utilisation"] is None  # no peak of a CPU is known
    assert "inference_tokens_per_second" not in row


def test_settings_say_the_mode():
    assert "a step is one CUDA graph" in speed.describe("paper", CUDA, mode="graph")["precision"]
    assert speed.describe("paper", CPU)["mode"] == "eager"


def test_compiled_code_that_loses_gradients_is_refused(monkeypatch):
    """The loss alone does not tell: it is right, and the model would not learn."""
    from transnormer.ops.rms_norm import saved_output

    cell = Cell("tiny", CPU, "t2", 64, "train", COMPILE)
    assert speed_cell.measure_cell(cell)["steps_per_second"] > 0
    backward = saved_output._Normed.backward
    monkeypatch.setattr(
        saved_output._Normed, "backward", staticmethod(lambda ctx, *dy: (0 * backward(ctx, *dy)[0], None, None))
    )
    with pytest.raises(GateFailed, match=r"the gradient of .* has norm 0.00e\+00, in eager PyTorch"):
        speed_cell.measure_cell(cell)


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

    def norms(call, model, batch, *, half_precision=half, half=True):
        way = "compiled" if call is model else "half" if half else "exact"
        asked.append(way)
        return {"large": 1.0, "small": {"compiled": compiled, "half": half_precision, "exact": exact}[way]}

    monkeypatch.setattr(speed_cell, "_gradient_norms", norms)
    cell, model = Cell("tiny", CPU, "t2", 64, "train", COMPILE), torch.nn.Linear(1, 1)
    if refused:
        with pytest.raises(GateFailed, match="the gradient of small has norm"):
            speed_cell._check_gradients(cell, model, {})
    else:
        speed_cell._check_gradients(cell, model, {})
    assert ("exact" in asked) == (refused or (not half / 2 <= compiled <= half * 2 and half > 0.01))


def test_cells_are_prepared_side_by_side_and_measured_one_by_one(monkeypatch):
    """In real processes, with the compiler switched off: every cell once, in the order asked for."""
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    notes = []
    options = {"mode": "compile", "limit": 100, "note": notes.append, "compile_jobs": 3}
    rows = list(speed.measure_speed("skyformer", ["t2", "vanilla"], [64, 128], CPU, **options))
    assert [(row["method"], row["length"]) for row in rows] == [
        (method, length) for method in ("t2", "vanilla") for length in (64, 128)
    ]
    assert all(row[f"{kind}_steps_per_second"] > 0 for row in rows for kind in speed_cell.KINDS)
    assert sum(note.startswith("compiling ") for note in notes) == 3


class Crowd:
    """Benches that share a memory: a cell holds its part from its preparation to its measurement."""

    def __init__(self, room: int) -> None:
        self.room, self.order = room, []

    def bench(self, size: int, prepares: bool = True):
        crowd = self

        class Bench:
            held = False

            def prepare(self, cell):
                self.held = prepares
                crowd.room -= size if prepares else 0
                return prepares

            def best(self, cell):
                crowd.order.append(cell.method)
                if not self.held:
                    return {"train_mode": "graph"} if size <= crowd.room else {"train_failed": OUT_OF_MEMORY}
                self.held, fits = False, crowd.room >= 0
                crowd.room += size
                return {"train_mode": "graph"} if fits else {"train_failed": OUT_OF_MEMORY}

        return Bench()


@pytest.mark.parametrize(
    ("problem", "tried_again"), [(CannotRun("does not compile"), False), (CannotRun(OUT_OF_MEMORY), True)]
)
def test_what_cannot_be_compiled_is_tried_once(monkeypatch, problem, tried_again):
    def fails(cell):
        raise problem

    taken, tried, notes, worker = bench(monkeypatch, {})
    monkeypatch.setattr(speed, "prepare_cell", fails)
    assert not taken.prepare(CELL)
    assert worker.restarts == 1
    row = taken.best(CELL)
    assert (GRAPH in tried) == tried_again
    assert row["train_compiled"] == tried_again
    assert any("not as graph of compiled kernels: does not compile" in note for note in notes) != tried_again


def test_what_does_not_fit_beside_others_is_measured_alone():
    crowd = Crowd(room=10)
    turns = [
        (Cell("paper", CUDA, "large", 64, "train"), crowd.bench(8)),
        (Cell("paper", CUDA, "broken", 64, "train"), crowd.bench(1, prepares=False)),
        (Cell("paper", CUDA, "small", 64, "train"), crowd.bench(4)),
        (Cell("paper", CUDA, "huge", 64, "train"), crowd.bench(11)),
    ]
    found = {cell.method: numbers for cell, numbers in speed._one_by_one(turns, lambda text: None)}
    assert crowd.order == ["large", "small", "huge", "broken", "large", "small", "huge"]
    assert found == {
        "large": {"train_mode": "graph"},
        "broken": {"train_mode": "graph"},
        "small": {"train_mode": "graph"},
        "huge": {"train_failed": OUT_OF_MEMORY},
    }


def test_a_prepared_cell_is_measured_as_it_is_and_no_other(monkeypatch):
    built = []
    monkeypatch.setattr(speed_cell, "_warm", lambda cell: (built.append(cell), None, None))
    monkeypatch.setattr(speed_cell, "_measure", lambda cell, *warm: {"of": cell})
    first, second = (Cell("tiny", CPU, method, 64, "train") for method in ("t2", "vanilla"))
    speed_cell.prepare_cell(first)
    assert speed_cell.measure_cell(first) == {"of": first}
    assert built == [first]
    speed_cell.prepare_cell(first)
    assert speed_cell.measure_cell(second) == {"of": second}
    assert speed_cell.measure_cell(first) == {"of": first}  # what was prepared in between is gone
    assert built == [first, first, second, first]

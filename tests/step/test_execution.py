"""How a function is prepared to run, and what is said where it cannot be."""

from __future__ import annotations

import pytest
import torch

from transnormer.config.schema import TrainSection
from transnormer.errors import ConfigError
from transnormer.step import execution
from transnormer.step.execution import CannotRun, Execution, choose_execution, describe

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("asked", "device", "processes", "chosen"),
    [
        ("auto", CPU, 1, "eager"),
        ("auto", CUDA, 1, "cuda_graph"),
        ("auto", CUDA, 2, "compile"),
        ("compile", CPU, 1, "compile"),
        ("eager", CUDA, 1, "eager"),
    ],
)
def test_what_auto_means(asked, device, processes, chosen):
    assert choose_execution(TrainSection(execution=asked), device, processes) == chosen


def test_a_graph_that_cannot_be_is_refused_with_the_reason():
    wanted = TrainSection(execution="cuda_graph")
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        choose_execution(wanted, CPU, 1)
    with pytest.raises(ConfigError, match="one process"):
        choose_execution(wanted, CUDA, 2)
    with pytest.raises(ConfigError, match=r"not been tested with train\.gradient_checkpointing"):
        choose_execution(TrainSection(execution="cuda_graph", gradient_checkpointing=True), CUDA, 1)
    assert choose_execution(TrainSection(gradient_checkpointing=True), CUDA, 1) == "compile"


def test_compilation_errors_are_reasons_and_others_are_not():
    def broken():
        raise RuntimeError("first line\nsecond line")

    with pytest.raises(CannotRun, match=r"^does not compile: first line$"):
        Execution("compile", CPU).prepare(broken)
    with pytest.raises(RuntimeError, match="second line"):
        Execution("cuda_graph", CUDA, compiled=False).prepare(broken)
    Execution("eager", CPU).prepare(broken)  # not run before it is asked for


def test_reasons_name_the_place_in_this_package():
    with pytest.raises(ConfigError) as caught:
        __import__("transnormer").preset("t9-tiny")
    assert describe(caught.value).startswith("unknown preset 't9-tiny'")
    assert "(models/presets.py:" in describe(caught.value)


def test_a_step_that_waits_is_found_before_the_capture(monkeypatch):
    switched = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", switched.append)
    monkeypatch.setattr(execution, "capture", lambda step, warmup: pytest.fail("captured"))

    def waiting():
        if switched == ["error"]:
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(CannotRun, match="waits for the GPU") as caught:
        Execution("cuda_graph", CUDA).prepare(waiting)
    assert not caught.value.spoilt
    assert switched == ["error", "default"]


def test_a_failed_capture_spoils_the_process(monkeypatch):
    monkeypatch.setattr(execution, "require_no_waiting", lambda step: None)

    def fails(step, warmup):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(execution, "capture", fails)
    with pytest.raises(CannotRun, match="cannot be captured: operation not permitted") as caught:
        Execution("cuda_graph", CUDA).prepare(lambda: None)
    assert caught.value.spoilt


def test_a_function_runs_no_more_often_than_promised(monkeypatch):
    runs = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(execution, "capture", lambda step, warmup: [step() for _ in range(warmup)])
    Execution("cuda_graph", CUDA).prepare(lambda: runs.append(1))
    assert len(runs) == execution.RUNS_BEFORE_RECORDING

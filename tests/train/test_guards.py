"""Signals wait for the step boundary; what is not finite is found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch

from transnormer.train.guards import EvaluationInterrupted, StopSignals, all_finite, signals_afterwards


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_sets_a_flag_and_handlers_are_given_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number
    assert signal.getsignal(number) is before


def test_signal_interrupts_an_evaluation_but_no_step() -> None:
    with StopSignals() as signals:
        with pytest.raises(EvaluationInterrupted), signals.interrupting_evaluation():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        with pytest.raises(EvaluationInterrupted), signals.interrupting_evaluation():
            pytest.fail("an evaluation began after the signal")


def test_a_signal_takes_effect_after_the_block() -> None:
    done = []

    def load(*signals: signal.Signals) -> None:
        with signals_afterwards():
            for number in signals:
                signal.raise_signal(number)
            done.append(signals)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            load(signal.SIGINT)
        load()
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == [(signal.SIGINT,), ()]


def test_second_signal_ends_the_process_at_once() -> None:
    program = (
        "import os, signal\n"
        "from transnormer.train.guards import StopSignals\n"
        "with StopSignals():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('never here', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "still here\n"
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_entry_is_found(value: float) -> None:
    tensors = [torch.zeros(3, 4), torch.zeros(()), torch.zeros(5)]
    assert all_finite(tensors)
    assert all_finite([])
    tensors[2][4] = value
    assert not all_finite(tensors)

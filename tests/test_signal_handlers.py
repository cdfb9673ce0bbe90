"""Signals wait until a loop can act on them, or unwind what must leave nothing behind."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

from transnormer.signals import (
    CountedSignals,
    EvaluationInterrupted,
    StopSignals,
    Terminated,
    signals_afterwards,
    sigterm_raises,
)


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
        "from transnormer.signals import StopSignals\n"
        "with StopSignals('after this step'):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('still here', flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('never here', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "still here\n"
    assert done.stderr == "SIGTERM: after this step\nstopped at once by SIGTERM\n"
    assert done.returncode == 128 + signal.SIGTERM


def test_a_terminal_gets_its_cursor_back_from_a_process_that_ends_at_once() -> None:
    program = (
        "import os, signal\n"
        "from rich.progress import Progress\n"
        "from transnormer.signals import StopSignals\n"
        "with StopSignals('after this step'), Progress():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=theirs, stderr=theirs, env=environment) as process:
        assert process.wait() == 128 + signal.SIGINT
    os.close(theirs)
    written = os.read(ours, 65536).decode()
    os.close(ours)
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l"), "it is hidden first, and then shown again"
    assert written.index("SIGINT: after this step") < written.index("stopped at once by SIGINT")


def test_signals_are_counted_and_the_last_is_known() -> None:
    with CountedSignals() as signals:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert (signals.count, signals.received) == (3, signal.SIGTERM)


def test_sigterm_unwinds_once_and_is_given_back() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    removed = []

    def write() -> None:
        with sigterm_raises():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)  # `timeout` sends it twice
                removed.append("all")

    try:
        with pytest.raises(Terminated) as ended:
            write()
        assert ended.value.code == 128 + signal.SIGTERM
        assert removed == ["all"]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_somebody_elses_handler_stays() -> None:
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("theirs"))
    try:
        with sigterm_raises():
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["theirs"]

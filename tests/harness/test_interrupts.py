"""A signal ends a program once, and not in the middle of a start."""

import os
import signal

import pytest

from harness.interrupts import Interrupts


def test_a_signal_becomes_an_exit_with_its_code_and_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_waits_for_the_end_of_a_start_and_a_second_one_is_ignored() -> None:
    steps = []
    with pytest.raises(SystemExit) as caught, Interrupts() as interrupts:
        try:
            with interrupts.deferred():
                os.kill(os.getpid(), signal.SIGINT)
                steps.append("started")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            steps.append("stopped")
    assert (steps, caught.value.code) == (["started", "stopped"], 130)

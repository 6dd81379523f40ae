"""A signal ends the demo once, and not in the middle of a start."""

import os
import signal

import pytest

from demo.interrupts import Interrupts


def test_a_signal_becomes_an_exit_with_its_code() -> None:
    with pytest.raises(SystemExit) as caught, Interrupts():
        os.kill(os.getpid(), signal.SIGTERM)

    assert caught.value.code == 143


def test_a_signal_waits_for_the_end_of_a_start() -> None:
    steps = []

    with pytest.raises(SystemExit) as caught, Interrupts() as interrupts, interrupts.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("started")

    assert (steps, caught.value.code) == (["started"], 130)


def test_a_second_signal_does_not_disturb_the_stopping() -> None:
    stopped = False

    with pytest.raises(SystemExit), Interrupts():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            stopped = True

    assert stopped


def test_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)

    with Interrupts():
        pass

    assert signal.getsignal(signal.SIGTERM) is before

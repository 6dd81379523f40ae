"""What a command says while something takes long."""

import time

import pytest

from pgque_dagster.cli.waiting import announce_if_slow


def test_what_takes_long_is_told_on_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_if_slow("starting Spark"):
        time.sleep(4)

    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "pgque: starting Spark ...\n")


def test_what_is_over_at_once_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_if_slow("starting Spark"):
        pass
    time.sleep(2)

    assert capsys.readouterr() == ("", "")


def test_what_fails_is_not_told_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="boom"), announce_if_slow("starting Spark"):
        raise ValueError("boom")
    time.sleep(2)

    assert capsys.readouterr() == ("", "")

"""What a command says while something takes long."""

import time

import pytest

from pgque_dagster.cli import waiting
from pgque_dagster.cli.waiting import announce_if_slow

PATIENCE_SECONDS = 60
MOMENT_SECONDS = 0.5


@pytest.fixture(autouse=True)
def short_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_MOMENT_SECONDS", MOMENT_SECONDS)


def test_what_takes_long_is_told_on_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    out = err = ""
    with announce_if_slow("starting Spark"):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not err:
            assert time.monotonic() < deadline
            time.sleep(0.05)
            said = capsys.readouterr()
            out, err = out + said.out, err + said.err
        time.sleep(2 * MOMENT_SECONDS)

    said = capsys.readouterr()
    assert (out + said.out, err + said.err) == ("", "pgque: starting Spark ...\n")


def test_what_is_over_at_once_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    with announce_if_slow("starting Spark"):
        pass
    time.sleep(2 * MOMENT_SECONDS)

    assert capsys.readouterr() == ("", "")


def test_what_fails_is_not_told_afterwards(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="boom"), announce_if_slow("starting Spark"):
        raise ValueError("boom")
    time.sleep(2 * MOMENT_SECONDS)

    assert capsys.readouterr() == ("", "")

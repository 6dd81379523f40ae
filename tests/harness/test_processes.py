"""Programs end with all their descendants."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import processes
from harness.interrupts import Interrupts
from tests.support.runner.waiting import wait_until

# A child in a process group of its own, as Spark's workers are; it prints its id.
_WITH_CHILD = "set -m; sleep 1000 & echo $!; wait"


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    with Interrupts() as interrupts:
        yield interrupts


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_descendants_end_with_the_program(tmp_path: Path, interrupts: Interrupts) -> None:
    log = tmp_path / "log"
    command = ["bash", "-c", _WITH_CHILD]

    with processes.running(command, interrupts=interrupts, log=log, cwd=tmp_path) as process:
        wait_until(lambda: log.read_text().endswith("\n"))
        child = int(log.read_text().splitlines()[0])
        assert is_alive(child)

    assert process.returncode is not None
    wait_until(lambda: not is_alive(child))


def test_a_recorded_program_is_ended(tmp_path: Path) -> None:
    # The kernel may show a program's environment only after Popen returns: wait for its output.
    with subprocess.Popen(
        ["bash", "-c", "echo started; sleep 1000; exit"],
        env={**os.environ, "MARK": str(tmp_path)},
        start_new_session=True,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        pid_file = tmp_path / "pid"
        pid_file.write_text(str(program.pid))

        processes.end_recorded(pid_file, marker=f"MARK={tmp_path}")

        try:
            assert program.wait(20) != 0
        finally:
            program.kill()


def test_a_recorded_id_that_another_program_has_now_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as program:
        pid_file = tmp_path / "pid"
        pid_file.write_text(str(program.pid))

        processes.end_recorded(pid_file, marker=f"MARK={tmp_path}")

        assert program.poll() is None
        program.kill()

"""Nothing is left of tests that a signal ends."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness.leftovers import MARK, marked
from tests.support.runner.waiting import wait_until

ROOT = Path(__file__).parents[2]
CONFIGURATION = "from tests.conftest import pytest_configure, pytest_keyboard_interrupt\n"
TEST = """
import subprocess, sys, time
from tests.conftest import new_server

def test_it(tmp_path_factory):
    with new_server() as server:
        program = tmp_path_factory.getbasetemp() / "program.py"
        program.write_text(PROGRAM)
        subprocess.Popen([sys.executable, program, str(server.pid)], start_new_session=True)
        time.sleep(1000)
"""
# It must be killed, and its semaphore is removed after its end.
PROGRAM = """
import multiprocessing, os, pathlib, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
shared = multiprocessing.get_context("spawn").Semaphore()
name = shared._semlock.name.replace("/", "/dev/shm/sem.")
started = pathlib.Path(__file__).with_name("starting")
started.write_text(f"{name} {sys.argv[1]} {os.getpid()}")
started.rename(started.with_name("started"))
time.sleep(1000)
"""


PYTEST = [sys.executable, "-m", "pytest"]
MAKE = ["make", f"--file={ROOT / 'Makefile'}", "--assume-old=archive", f"PYTHON='{sys.executable}'"]


@pytest.mark.parametrize(
    ("command", "send", "number"),
    [
        ([*PYTEST, "-n1"], os.killpg, signal.SIGTERM),
        ([*PYTEST, "-n1"], os.killpg, signal.SIGKILL),
        ([*MAKE, "test", "ARGS=-n1"], os.kill, signal.SIGKILL),
        # pytest alone: its worker does not notice, and the test would sleep on.
        ([*PYTEST, "-n1"], os.kill, signal.SIGINT),
        # make uses a shell because of the characters.
        ([*MAKE, "test", "ARGS=-n1 -k '' -W \"ignore:;\""], os.kill, signal.SIGTERM),
        # Only make is told that its terminal is closed. nohup would have the signal ignored.
        pytest.param(
            ["env", "--default-signal=HUP", "setsid", "--ctty", *MAKE, "test", "ARGS=-n1"],
            None,
            signal.SIGHUP,
            marks=pytest.mark.skipif(not Path("/dev/ptmx").exists(), reason="has no terminals"),
        ),
    ],
)
def test_a_signal_leaves_no_process_and_no_file(
    tmp_path: Path,
    command: list[str],
    send: Callable[[int, int], None] | None,
    number: signal.Signals,
) -> None:
    (tmp_path / "conftest.py").write_text(CONFIGURATION)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    (tmp_path / "test_it.py").write_text(f"PROGRAM = {PROGRAM!r}\n{TEST}")
    (tmp_path / "temporary").mkdir()
    # The tests themselves may be arguments of make.
    given = {"MAKEFLAGS": "", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")}
    terminal = pty.openpty() if send is None else ()
    with subprocess.Popen(
        command,
        stdin=terminal[1] if terminal else None,
        cwd=tmp_path,
        env=os.environ | given,
        start_new_session=send is not None,
    ) as tests:
        try:
            wait_until(lambda: tests.poll() is not None or any(tmp_path.rglob("started")))
            (started,) = tmp_path.rglob("started")
            semaphore, *processes = started.read_text().split()
            assert Path(semaphore).exists()
            (below,) = psutil.Process(tests.pid).children() if "make" in command else [tests]
            mark = f"{os.environ[MARK]}/{below.pid}"
            assert set(map(int, processes)) <= set(marked(mark))
            if send is not None:
                send(tests.pid, number)
            for descriptor in terminal:
                os.close(descriptor)
            wait_until(lambda: not marked(mark) and not [*(tmp_path / "temporary").iterdir()])
            assert not Path(semaphore).exists()
        finally:
            tests.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_signal_to_the_group_of_the_demo_leaves_no_process_and_no_file(
    tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        assert any("starting dagster dev" in line for line in demo.stdout)
        mark = f"{os.environ[MARK]}/{demo.pid}"
        assert marked(mark)
        os.killpg(demo.pid, number)
        demo.stdout.read()
    wait_until(lambda: not marked(mark) and not list(tmp_path.iterdir()))

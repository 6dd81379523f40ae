"""Tests that take much more processor time than before are noticed, with the file that grew."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import test_seconds

from tests.support.runner.processor_time import RESULT, SHARED

BEFORE = {"tests/a.py": 100.0, "tests/b.py": 60.0, "tests/small.py": 1.0}
FILE = """
import pathlib, subprocess, sys, time
import pytest

WORK = "import pathlib, time\\nwhile time.process_time() < 0.3: pass\\n"

@pytest.fixture(scope="session")
def shared():
    subprocess.run([sys.executable, "-c", WORK])

def test_a_child_works(shared):
    subprocess.run([sys.executable, "-c", WORK])

def test_a_daemon_works():
    "It leaves its parent, and lives on."
    wait = "done = pathlib.Path('done'); done.touch()\\nwhile done.exists(): time.sleep(0.1)"
    subprocess.run(["sh", "-c", '"$@" & true', "sh", sys.executable, "-c", WORK + wait])
    while not pathlib.Path("done").exists():
        time.sleep(0.1)

def test_nothing_works():
    time.sleep(0.1)
"""


def test_the_sum_has_a_limit_and_the_files_that_grew_are_named() -> None:
    text = test_seconds.kept_text(BEFORE)
    grown = BEFORE | {"tests/b.py": 130.0, "tests/new.py": 20.0}
    assert test_seconds.faults(BEFORE, text) == []
    assert test_seconds.faults(BEFORE | {"tests/b.py": 120.0}, text) == []
    first, *files, hint = test_seconds.faults(grown, text)
    assert "251 s of processor time, 225 s are allowed" in first
    assert files == ["  tests/b.py: 130 s, was 60.0", "  tests/new.py: 20 s, was less than 4"]
    assert "--write" in hint


def test_a_run_writes_what_each_file_took_with_all_processes(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(
        textwrap.dedent("""
        from tests.support.runner.processor_time import ProcessorTime

        def pytest_configure(config):
            config.pluginmanager.register(ProcessorTime(config))
        """)
    )
    (tmp_path / "test_it.py").write_text(FILE)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n1", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(test_seconds.ROOT)},
        check=True,
    )
    (tmp_path / "done").unlink()
    spent = json.loads((tmp_path / RESULT).read_text())
    child = spent["test_it.py"]["test_a_child_works"]
    for other in (spent["test_it.py"]["test_a_daemon_works"], spent[SHARED]["fixture shared"]):
        assert child / 2 < other < child * 2
    assert spent["test_it.py"]["test_nothing_works"] < child / 4

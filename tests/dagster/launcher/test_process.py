"""The launcher's side of a warm process, and what the process says about its files."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit, setrlimit
from types import ModuleType

import pytest
from pyspark.errors import PySparkRuntimeError

from pgque_dagster.launcher import process, serving
from pgque_dagster.launcher.process import Code, WarmProcess
from pgque_dagster.launcher.source_files import loaded_files


def test_the_end_of_a_process_touches_no_file_that_is_opened_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copies, ended, opened = threading.Event(), threading.Event(), threading.Event()
    copy = os.dup

    class Process(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            status = super().wait(timeout)
            if "_listen" in threading.current_thread().name:
                copies.wait(0.5)
            return status

    def copy_late(descriptor: int) -> int:
        if "_wait" in threading.current_thread().name:
            copies.set()
            opened.wait()
        return copy(descriptor)

    monkeypatch.setattr(process.subprocess, "Popen", Process)
    monkeypatch.setattr(process.os, "dup", copy_late)
    before = set(threading.enumerate())
    warm = WarmProcess(
        Code(sys.executable, "", ""), lambda *_: None, lambda *_: ended.set(), files=None
    )
    (waiting,) = [x for x in set(threading.enumerate()) - before if "_wait" in x.name]
    warm.retire()
    assert ended.wait(60)
    del warm
    # Its ends get the numbers of the descriptors that were closed.
    readable, writable = os.pipe()
    opened.set()
    waiting.join()
    os.close(writable)
    os.set_blocking(readable, False)
    assert os.read(readable, 1) == b""
    os.close(readable)


def test_a_process_that_died_gets_no_run_although_a_child_of_it_has_its_channel(
    tmp_path: Path,
) -> None:
    program, ended = tmp_path / "python", threading.Event()
    program.write_text('#!/bin/sh\nsleep 600 &\necho $! >"$0.child"\n')
    program.chmod(0o700)
    warm = WarmProcess(
        Code(str(program), "", ""), lambda *_: None, lambda *_: ended.set(), files=None
    )
    assert ended.wait(60)
    warm.run_id = "run"

    with pytest.raises(FileNotFoundError):
        warm.execute("")

    os.kill(int(Path(f"{program}.child").read_text()), signal.SIGKILL)


def test_a_process_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits, ended = getrlimit(RLIMIT_NOFILE), threading.Event()
    code, open_files = Code("/bin/true", "", ""), Path("/proc/self/fd")

    def fails(limit: int = limits[0], stack: int = 0) -> bool:
        before = set(open_files.iterdir())
        setrlimit(RLIMIT_NOFILE, (limit, limits[1]))
        threading.stack_size(stack)
        try:
            WarmProcess(code, lambda *_: None, lambda *_: ended.set(), files=None)
        except (OSError, RuntimeError):
            pass
        else:
            return False
        finally:
            threading.stack_size(0)
            setrlimit(RLIMIT_NOFILE, limits)
        assert (set(open_files.iterdir()) - before, [*tmp_path.iterdir()]) == (set(), [])
        return True

    # There is room for no thread.
    assert fails(stack=2**46)
    limit = first = os.dup(0)
    os.close(first)
    while fails(limit):
        limit += 1
    assert limit > first + 4
    assert ended.wait(60)


def test_a_folder_that_cannot_be_listed_hides_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("package")
    package.__file__ = str(tmp_path / "__init__.py")
    monkeypatch.setitem(sys.modules, "package", package)
    (tmp_path / "component.yaml").touch()
    monkeypatch.chdir(tmp_path)
    for _ in range(20):  # Its path is too long.
        Path("folder" * 40).mkdir()
        os.chdir("folder" * 40)

    assert str(tmp_path / "component.yaml") in loaded_files()


def test_a_process_that_finds_no_java_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Resource:
        @property
        def spark_session(self) -> None:
            raise PySparkRuntimeError("no gateway")  # as PySpark without Java

    monkeypatch.setattr(serving, "resources_of", lambda _: {"pyspark": Resource()})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    serving._prepare("")

    (told,) = caplog.records
    assert "Spark needs Java 17" in told.getMessage()
    assert told.exc_info is None

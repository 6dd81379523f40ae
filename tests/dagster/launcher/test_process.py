"""The launcher's side of a warm process."""

import os
import subprocess
import sys
import threading

import pytest

from pgque_dagster.launcher import process
from pgque_dagster.launcher.process import Code, WarmProcess


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

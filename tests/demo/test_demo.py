"""The demo itself, as a user runs it."""

import subprocess
import sys

import pytest

from demo.books import MONEY
from harness.place import PROJECT


@pytest.mark.slow
def test_the_demo_ends_with_replicas_that_equal_the_bank() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 killed on purpose" in done.stdout
    assert f"{len(MONEY)} of {len(MONEY)} checks passed" in done.stdout
    assert "added a column" in done.stdout

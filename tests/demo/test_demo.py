"""The demo itself, as a user runs it."""

import os
import subprocess
import sys

import pytest

from demo.place import PROJECT


@pytest.mark.slow
@pytest.mark.parametrize("chaos", ["", "1"])
def test_the_demo_ends_without_a_mismatch(chaos: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--seconds", "15"],
        cwd=PROJECT,
        env={**os.environ, "CHAOS": chaos},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "mismatches        0" in done.stdout
    assert ("killed on purpose" in done.stdout) == bool(chaos)

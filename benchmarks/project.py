"""A Dagster project whose daemon runs while it is measured."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from harness import processes
from harness.interrupts import Interrupts


def write_project(folder: Path, definitions: str) -> None:
    """Writes the module `shop` with the definitions, and the workspace that loads it."""
    (folder / "shop.py").write_text(definitions)
    (folder / "workspace.yaml").write_text("load_from:\n  - python_module: shop\n")


@contextmanager
def daemon(folder: Path, home: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Runs Dagster's daemon while the block runs, then ends it and all its runs.

    Args:
        folder: the project.
        home: the instance's, with the log, whose end is printed after a TimeoutError.
        environment: variables that the definitions read.

    Yields:
        The id of its process, which is also its session's.
    """
    log = home / "log"
    command = [Path(sys.executable).with_name("dagster-daemon"), "run", "-w", "workspace.yaml"]
    whole = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        **environment,
    }
    with processes.running(
        command, interrupts=Interrupts(), log=log, cwd=folder, env=whole
    ) as process:
        try:
            yield process.pid
        except TimeoutError:
            sys.stderr.write(log.read_text()[-4000:])
            raise

"""Runs `dagster dev` (webserver, daemon and code server) with its own instance."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from pgque_dagster import project_files

from . import HarnessError, processes
from .graphql import Dagster
from .interrupts import Interrupts
from .place import PROJECT, Place

_READY_SECONDS = 600.0

# The welcome dialog and the telemetry are off.
_QUIET = """\
telemetry:
  enabled: false
nux:
  enabled: false
"""


def project_settings(**changes: dict[str, Any]) -> str:
    """Returns the settings of a new project, as in dagster.yaml.

    Args:
        changes: settings to change or add, by section of the file.
    """
    settings = yaml.safe_load((project_files.FOLDER / "dagster.yaml").read_text())
    for part, values in changes.items():
        settings[part] = settings.get(part, {}) | values
    text: str = yaml.safe_dump(settings)
    return text


# A second parallel run would start a second Spark, which takes longer than the runs themselves.
ONE_RUN_SETTINGS = project_settings(
    concurrency={"runs": {"max_concurrent_runs": 1}}, run_monitoring={"poll_interval_seconds": 5}
)


@contextmanager
def dagster_dev(
    place: Place,
    database_url: str,
    interrupts: Interrupts,
    *,
    workspace: Path,
    settings: str,
) -> Iterator[Dagster]:
    """Runs `dagster dev` while the block runs, then ends it and all its runs.

    Args:
        place: the folder for its home and its log.
        database_url: PGQUE_URL for the definitions.
        interrupts: the program's signal handling.
        workspace: the file that names the code locations.
        settings: the instance's, as in dagster.yaml.

    Yields:
        The running Dagster, once it has loaded the definitions.
    """
    (place.dagster_home / "dagster.yaml").write_text(_QUIET + settings)
    port = processes.free_port()
    command = [
        sys.executable,
        *("-m", "dagster", "dev", "--host", "127.0.0.1", "--port", str(port)),
        *("--workspace", str(workspace)),
    ]
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(place.dagster_home),
        "PGQUE_URL": database_url,
        "PGQUE_DEMO_OUTPUT": str(place.output),
        "SPARK_LOCAL_DIRS": str(place.spark_scratch),
    }
    with processes.running(
        command, interrupts=interrupts, log=place.dagster_log, cwd=PROJECT, env=environment
    ) as process:
        place.dagster_pid.write_text(str(process.pid))
        dagster = Dagster(f"http://127.0.0.1:{port}", session=process.pid)
        deadline = time.monotonic() + _READY_SECONDS
        while not dagster.is_ready():
            if process.poll() is not None:
                raise HarnessError(f"dagster dev ended at once: read {place.dagster_log}")
            if time.monotonic() > deadline:
                raise HarnessError(
                    f"dagster dev was not ready in {_READY_SECONDS:.0f} s: read {place.dagster_log}"
                )
            time.sleep(0.5)
        yield dagster
    place.dagster_pid.unlink()

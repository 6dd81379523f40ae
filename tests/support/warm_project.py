"""The code location of the tests of the warm launcher, which copy this file and change it.

Its ops say in which process they are, wait for the test, or end in some way.
"""

import os
import signal
import time
from pathlib import Path

import dagster as dg

GREETING = "first"
WARM = {"pgque/warm": "true"}


def folder() -> Path:
    return Path(os.environ["DAGSTER_HOME"]) / "test"


@dg.op
def say(context: dg.OpExecutionContext) -> None:
    context.log.info(f"{GREETING} from {os.getpid()}")


@dg.op
def wait(context: dg.OpExecutionContext) -> None:
    (folder() / f"{context.run_id}.waits").write_text(str(os.getpid()))
    while not (folder() / "go").exists():
        time.sleep(0.05)


@dg.op
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@dg.op
def fail() -> None:
    raise RuntimeError("the op fails")


@dg.job(tags=WARM)
def say_warm() -> None:
    say()


@dg.job
def say_cold() -> None:
    say()


@dg.job(tags=WARM)
def wait_warm() -> None:
    wait()


@dg.job(tags=WARM)
def die_warm() -> None:
    die()


@dg.job(tags=WARM)
def fail_warm() -> None:
    fail()


@dg.run_failure_sensor(default_status=dg.DefaultSensorStatus.RUNNING)
def note_failure(context: dg.RunFailureSensorContext) -> None:
    (folder() / f"{context.dagster_run.run_id}.failed").touch()


defs = dg.Definitions(
    jobs=[say_warm, say_cold, wait_warm, die_warm, fail_warm],
    sensors=[note_failure],
    executor=dg.in_process_executor,
)

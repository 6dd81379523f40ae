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


def note(context: dg.OpExecutionContext) -> Path:
    """Notes the words and the process of a run; returns the folder of the notes."""
    folder = Path(os.environ["DAGSTER_HOME"]) / "test"
    (folder / f"{context.run_id}.new").write_text(f"{GREETING} {os.getpid()}")
    (folder / f"{context.run_id}.new").rename(folder / context.run_id)
    return folder


@dg.op
def say(context: dg.OpExecutionContext) -> None:
    note(context)


@dg.op
def wait(context: dg.OpExecutionContext) -> None:
    folder = note(context)
    while not (folder / "go").exists():
        time.sleep(0.05)


@dg.op
def die(context: dg.OpExecutionContext) -> None:
    note(context)
    os.kill(os.getpid(), signal.SIGKILL)


@dg.op
def fail(context: dg.OpExecutionContext) -> None:
    note(context)
    raise RuntimeError("the op fails")


def job_of(op: dg.OpDefinition) -> dg.JobDefinition:
    return dg.GraphDefinition(name=f"{op.name}_warm", node_defs=[op]).to_job(
        tags=WARM, executor_def=dg.in_process_executor
    )


JOBS = {op.name: job_of(op) for op in (say, wait, die, fail)}
defs = dg.Definitions(jobs=list(JOBS.values()))

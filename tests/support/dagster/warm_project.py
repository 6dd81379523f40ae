"""The code location of the tests of the warm launcher, which copy this file and change it.

Its ops say in which process they are, wait for the test, or end in some way.
"""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from pgque_dagster.client.replicas.verify import THREAD

GREETING = "first"
WARM = {"pgque/warm": "true"}


def note(context: dg.OpExecutionContext) -> Path:
    """Notes the words and the process of a run; returns the folder of the notes."""
    folder = Path(os.environ["DAGSTER_HOME"]) / "test"
    (folder / f"{context.run_id}.new").write_text(
        f"{os.environ.get('GREETING', GREETING)} {os.getpid()}"
    )
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


def leave_a_child(context: dg.OpExecutionContext, fork: Callable[[], int]) -> None:
    """Dies, and leaves a child that the test ends."""
    folder = note(context)
    child = fork()
    if child:
        (folder / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    os._exit(0)


@dg.op
def fork(context: dg.OpExecutionContext) -> None:
    leave_a_child(context, os.fork)


@dg.op
def fork_in_c(context: dg.OpExecutionContext) -> None:
    # Python does not notice it.
    leave_a_child(context, ctypes.PyDLL(None).fork)


@dg.op
def fail(context: dg.OpExecutionContext) -> None:
    note(context)
    raise RuntimeError("the op fails")


@dg.op
def compare_on(context: dg.OpExecutionContext) -> None:
    """Leaves a comparison that takes too long."""
    note(context)
    threading.Thread(target=time.sleep, args=(600,), name=THREAD, daemon=True).start()


@dg.op
def hide_files(context: dg.OpExecutionContext) -> None:
    """Makes the process unable to say which files it has loaded."""
    note(context)
    sys.modules["hidden"] = Hidden()  # type: ignore[assignment]


class Hidden:
    @property
    def __dict__(self) -> Any:
        raise OSError("hidden")


def job_of(op: dg.OpDefinition) -> dg.JobDefinition:
    return dg.GraphDefinition(name=f"{op.name}_warm", node_defs=[op]).to_job(
        tags=WARM, executor_def=dg.in_process_executor
    )


def origin_of(job: str, path: Path) -> Any:
    """Which file a process loads for a job."""
    pointer = {
        "__class__": "FileCodePointer",
        **{"fn_name": "defs", "python_file": str(path), "working_directory": str(path.parent)},
    }
    repository = {
        "__class__": "RepositoryPythonOrigin",
        **{"code_pointer": pointer, "executable_path": sys.executable, "entry_point": ["dagster"]},
        **{"container_image": None, "container_context": None},
    }
    origin = {"__class__": "PipelinePythonOrigin", "repository_origin": repository}
    return dg.deserialize_value(json.dumps({**origin, "pipeline_name": job}))


class Spark:
    """Notes in which process a session was opened."""

    @property
    def spark_session(self) -> None:
        (Path(os.environ["DAGSTER_HOME"]) / "test" / f"opened-{os.getpid()}").touch()


OPS = (say, wait, fork, fork_in_c, fail, compare_on, hide_files)
JOBS = {op.name: job_of(op) for op in OPS}
defs = dg.Definitions(jobs=list(JOBS.values()), resources={"pyspark": Spark()})

"""Stand-ins for what starts each step on another host: a pod for each step, and a step launcher.

The executors of dagster-k8s, dagster-docker and dagster-celery-k8s are made of the same
`StepDelegatingExecutor`, and the step launchers for Databricks and EMR of the same functions of
`external_step`. Dagster has no public names for them.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
from dagster._core.definitions.step_launcher import StepLauncher
from dagster._core.events.log import EventLogEntry
from dagster._core.execution.context.system import StepExecutionContext
from dagster._core.execution.plan.external_step import (
    external_instance_from_step_run_ref,
    run_step_from_ref,
    step_context_to_step_run_ref,
)
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.step_delegating import (
    CheckStepHealthResult,
    StepDelegatingExecutor,
    StepHandler,
    StepHandlerContext,
)
from dagster._grpc.types import ExecuteStepArgs

from harness.place import PROJECT

# What an image and a deployment's manifest give a pod; all else of the host is unknown to it.
_GIVEN = ("JAVA_HOME", "PGQUE_URL", "PGQUE_DEMO_OUTPUT")
_PODS = "pods"


class ReportingAfterwards(StepLauncher):
    """Has a step executed for an instance of its own, whose events it reports when it is over."""

    def launch_step(self, step_context: StepExecutionContext) -> Iterator[dg.DagsterEvent]:
        step, events = step_context_to_step_run_ref(step_context), list[EventLogEntry]()
        instance = external_instance_from_step_run_ref(step, event_listener_fn=events.append)
        list(run_step_from_ref(step, instance))
        yield from (event.get_dagster_event() for event in events if event.is_dagster_event)


class Pod:
    """The process of one step, in a folder of its own.

    Args:
        folder: has the process's home, temporary files, log and id.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def pid(self) -> int:
        """The process of the step."""
        return int((self.folder / "pid").read_text())

    @property
    def run_worker(self) -> int:
        """The process that started the step."""
        return int((self.folder / "run_worker").read_text())

    @property
    def is_running(self) -> bool:
        try:
            return "State:\tZ" not in Path(f"/proc/{self.pid}/status").read_text()
        except FileNotFoundError:
            return False

    def start(self, arguments: ExecuteStepArgs) -> None:
        """Runs a step, without the environment, the working folder and the files of this host."""
        home, temporary = self.folder / "home", self.folder / "tmp"
        for folder in (home, temporary):
            folder.mkdir(parents=True)
        shutil.copy(Path(os.environ["DAGSTER_HOME"]) / "dagster.yaml", home)
        alone = ExecuteStepArgs(
            arguments.job_origin,
            arguments.run_id,
            arguments.step_keys_to_execute,
            instance_ref=None,
            retry_mode=arguments.retry_mode,
            known_state=arguments.known_state,
            should_verify_step=arguments.should_verify_step,
        )
        environment = {name: os.environ[name] for name in _GIVEN if name in os.environ}
        places = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DAGSTER_HOME": home,
            "HOME": home,
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
            "PYTHONPATH": PROJECT,
        }
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                alone.get_command_args(),
                cwd=home,
                env=environment | {name: str(path) for name, path in places.items()},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        (self.folder / "run_worker").write_text(str(os.getpid()))
        (self.folder / "pid").write_text(str(process.pid))

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal, if it is still there."""
        if self.is_running:
            os.kill(self.pid, number)


def pods(output: Path, run_id: str) -> list[Pod]:
    """The pods of a run, the newest one last."""
    return [pod for pod in all_pods(output) if pod.folder.name.startswith(run_id)]


def all_pods(output: Path) -> list[Pod]:
    """All pods whose output is in this folder, the newest one last."""
    pids = (output.parent / _PODS).glob("*/pid")
    return [Pod(path.parent) for path in sorted(pids, key=lambda path: path.stat().st_mtime)]


class PodHandler(StepHandler):
    """Starts a pod for each step and looks at whether it runs, as dagster-k8s does."""

    @property
    def name(self) -> str:
        return "pods"

    def launch_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        arguments = step_handler_context.execute_step_args
        folder = _output().parent / _PODS
        folder.mkdir(exist_ok=True)
        Pod(Path(tempfile.mkdtemp(prefix=f"{arguments.run_id}-", dir=folder))).start(arguments)
        return iter(())

    def check_step_health(self, step_handler_context: StepHandlerContext) -> CheckStepHealthResult:
        if self._pod(step_handler_context).is_running:
            return CheckStepHealthResult.healthy()
        return CheckStepHealthResult.unhealthy("its pod is gone")

    def terminate_step(self, step_handler_context: StepHandlerContext) -> Iterator[dg.DagsterEvent]:
        self._pod(step_handler_context).signal(signal.SIGINT)
        return iter(())

    def _pod(self, context: StepHandlerContext) -> Pod:
        return pods(_output(), context.execute_step_args.run_id)[-1]


@dg.executor(name="pods", requirements=dg.multiple_process_executor_requirements())
def pod_executor(init: dg.InitExecutorContext) -> StepDelegatingExecutor:
    """Runs each step in a process that shares only the database and the output with this one."""
    return StepDelegatingExecutor(
        PodHandler(), RetryMode.ENABLED, check_step_health_interval_seconds=2
    )


def _output() -> Path:
    return Path(os.environ["PGQUE_DEMO_OUTPUT"])

"""Everything that the launcher uses of Dagster beyond its public names is in this file.

A new version of Dagster may change any of it. The test of this file shows which part broke, with
the oldest and the newest Dagster (`build/oldest.py dagster`).
"""

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, get_type_hints

import dagster as dg
from dagster._cli.api import _execute_run_command_body  # noqa: PLC2701
from dagster._cli.utils import _inject_local_env_file  # noqa: PLC2701
from dagster._core.instance.ref import InstanceRef  # noqa: PLC2701
from dagster._utils.hosted_user_process import recon_repository_from_origin  # noqa: PLC2701
from dagster._utils.interrupts import capture_interrupts  # noqa: PLC2701

from ..project.keys import WAITS

logger = logging.getLogger("pgque.launcher")

# The daemon skips a sensor that is due in a millisecond.
_EVALUATION_SECONDS = 1.1

_queue_is_due = threading.Event()


def reference_of(instance: dg.DagsterInstance) -> str:
    """Returns how another process opens this instance."""
    return dg.serialize_value(instance.get_ref())


def instance_of(reference: str) -> AbstractContextManager[dg.DagsterInstance]:
    """Opens the instance that `reference_of` names."""
    return dg.DagsterInstance.from_ref(dg.deserialize_value(reference, InstanceRef))


def local_environment() -> AbstractContextManager[None]:
    """Sets the variables of the current folder's `.env` file, as a command of Dagster's does."""
    return _inject_local_env_file(logger)


def execute(run_id: str, instance: dg.DagsterInstance) -> None:
    """Executes a run in this process, in its main thread, as `dagster api execute_run` does."""
    with capture_interrupts():
        _execute_run_command_body(run_id, instance, lambda _: None, set_exit_code_on_failure=False)


def resources_of(origin: str) -> Mapping[str, dg.ResourceDefinition]:
    """Loads a code location; returns its resources.

    Args:
        origin: the code location, as Dagster writes it.
    """
    read: Any = dg.deserialize_value(origin)
    return recon_repository_from_origin(read).get_definition().get_top_level_resources()


def health(status: str, message: str | None) -> Any:
    """Makes the result of a run worker's health check, such as RUNNING, FAILED or NOT_FOUND."""
    result = get_type_hints(dg.DefaultRunLauncher.check_run_worker_health)["return"]
    return result(get_type_hints(result)["status"][status], message)


def server_of(workspace: Any, location_name: str) -> str:
    """Returns the id of a code location's server, which changes when somebody reloads it.

    Args:
        workspace: the workspace of the launch.
        location_name: the name of the code location.

    Returns:
        The id; an empty string for a server that the daemon started, because it starts another one
        every minute.
    """
    location = workspace.get_code_location(location_name)
    return location.server_id if hasattr(location.origin, "socket") else ""


def with_batch_sensors(workspace: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names of the code locations that consume queues, and what a process loads."""
    for location in workspace.code_locations:
        for repository in location.get_repositories().values():
            if any(WAITS in sensor.tags for sensor in repository.get_sensors()):
                yield location.name, repository.get_python_origin()


def call_before_sensors(use: Callable[[Any], None]) -> None:
    """Has a daemon in this process call this with its workspace before it evaluates sensors."""
    daemon: Any = sys.modules.get("dagster._daemon.daemon")
    if daemon is None:
        return
    evaluate = sys.modules["dagster._daemon.sensor"].execute_sensor_iteration_loop

    def prepare_and_evaluate(process_context: Any, *rest: Any, **options: Any) -> Any:
        try:
            use(process_context.create_request_context())
        except Exception:
            # Runs still start, if later.
            logger.exception("preparing warm processes")
        return evaluate(process_context, *rest, **options)

    daemon.execute_sensor_iteration_loop = prepare_and_evaluate


def evaluate_sensors_often() -> None:
    """Makes a daemon in this process begin an evaluation of its sensors every second.

    Dagster begins one every 5 seconds, and has no setting for it. How often each sensor is
    evaluated still depends on its `minimum_interval_seconds`.
    """
    daemon: Any = sys.modules.get("dagster._daemon.sensor")
    if daemon is not None:
        daemon.MIN_INTERVAL_LOOP_TIME = _EVALUATION_SECONDS


def read_queue_often(seconds: float) -> None:
    """Makes a daemon in this process read its queue of runs this often, and when it is due."""
    module: Any = sys.modules.get("dagster._daemon.run_coordinator.queued_run_coordinator_daemon")
    if module is None:
        return
    read = inspect.unwrap(module.QueuedRunCoordinatorDaemon.run_iteration)

    @wraps(read)
    def wait_and_read(*arguments: Any, **options: Any) -> Any:
        _queue_is_due.wait(seconds)
        _queue_is_due.clear()
        return read(*arguments, **options)

    module.QueuedRunCoordinatorDaemon.run_iteration = wait_and_read


def queue_is_due() -> None:
    """Tells a daemon in this process that its queue has a new run, or that a run has ended."""
    _queue_is_due.set()

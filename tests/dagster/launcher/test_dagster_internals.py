"""The parts of Dagster without a public name that the launcher uses. A failure names the part."""

import logging
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
import yaml

from pgque_dagster.launcher import QuickRunCoordinator, WarmRunLauncher, dagster_internals
from tests.support.dagster import warm_project
from tests.support.dagster.sensing import remote_origin

SHOP = """
import dagster as dg

@dg.job
def nothing(): pass

@dg.sensor(job=nothing, tags={"pgque/waits_for_ticks": "true"})
def batches(): pass

defs = dg.Definitions(jobs=[nothing], sensors=[batches])
"""


@dg.job
def nothing() -> None:
    pass


def test_a_run_is_executed_with_the_instance_of_the_launcher(tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        origin = dg.reconstructable(nothing).get_python_origin()
        run = instance.create_run_for_job(nothing, job_code_origin=origin).run_id
        with dagster_internals.instance_of(dagster_internals.reference_of(instance)) as opened:
            dagster_internals.execute(run, opened)

        record = instance.get_run_by_id(run)
        assert record is not None and record.status is dg.DagsterRunStatus.SUCCESS


@pytest.mark.parametrize("status", ["RUNNING", "FAILED", "NOT_FOUND"])
def test_run_monitoring_knows_the_result_of_a_health_check(status: str) -> None:
    result = dagster_internals.health(status, "why")

    assert (result.status.name, result.msg) == (status, "why")


def test_a_code_location_has_its_resources() -> None:
    origin = warm_project.origin_of("say_warm", Path(warm_project.__file__))

    found = dagster_internals.resources_of(dg.serialize_value(origin.repository_origin))

    assert list(found) == ["pyspark"]


class Waiting(threading.Event):
    """Notes how long somebody would wait for it."""

    seconds: float | None = None

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds = timeout
        return True


def test_the_daemon_begins_an_evaluation_of_sensors_every_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dagster._daemon import sensor  # noqa: PLC2701

    # Sets it back at the end.
    monkeypatch.setattr(sensor, "MIN_INTERVAL_LOOP_TIME", 5)
    WarmRunLauncher(processes=1, max_runs=1).dispose()
    shutdown = Waiting()
    no_workspace: Any = None
    loop = sensor.execute_sensor_iteration_loop(no_workspace, logging.getLogger(), shutdown)
    while shutdown.seconds is None:
        next(loop)

    assert 0 < shutdown.seconds <= 1.1


def test_the_daemon_tells_which_code_locations_have_batch_sensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster._core.remote_origin import InProcessCodeLocationOrigin  # noqa: PLC2701
    from dagster._core.types.loadable_target_origin import LoadableTargetOrigin  # noqa: PLC2701
    from dagster._core.workspace.context import WorkspaceProcessContext  # noqa: PLC2701
    from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget  # noqa: PLC2701
    from dagster._daemon import daemon  # noqa: PLC2701

    origins = []
    for name, text in {
        "shop": SHOP,
        "other": "import dagster as dg\ndefs = dg.Definitions()",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
        target = LoadableTargetOrigin(
            executable_path=sys.executable, python_file=str(tmp_path / f"{name}.py")
        )
        origins.append(InProcessCodeLocationOrigin(target, location_name=name))
    loop: Any = daemon.execute_sensor_iteration_loop
    # Sets it back at the end.
    monkeypatch.setattr(daemon, "execute_sensor_iteration_loop", loop)
    found: list[tuple[str, Any]] = []
    dagster_internals.call_before_sensors(
        lambda workspace: found.extend(dagster_internals.with_batch_sensors(workspace))
    )

    with (
        dg.DagsterInstance.local_temp(str(tmp_path)) as instance,
        WorkspaceProcessContext(instance, InProcessWorkspaceLoadTarget(origins)) as context,
    ):
        next(daemon.execute_sensor_iteration_loop(context, logging.getLogger(), Waiting()))
        workspace = context.create_request_context()
        (repository,) = workspace.get_code_location("shop").get_repositories().values()
        (job,) = repository.get_all_jobs()

    # As in the record of a run.
    assert found == [("shop", job.get_python_origin().repository_origin)]


def test_the_daemon_reads_the_queue_of_runs_every_half_second_and_after_a_new_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster._core.run_coordinator import SubmitRunContext  # noqa: PLC2701
    from dagster._daemon.controller import create_daemon_of_type  # noqa: PLC2701
    from dagster._daemon.run_coordinator import QueuedRunCoordinatorDaemon  # noqa: PLC2701

    due = Waiting()
    monkeypatch.setattr(dagster_internals, "_queue_is_due", due)
    # Sets it back at the end.
    monkeypatch.setattr(
        QueuedRunCoordinatorDaemon, "run_iteration", QueuedRunCoordinatorDaemon.run_iteration
    )
    coordinator = {"module": "pgque_dagster.launcher", "class": QuickRunCoordinator.__name__}
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump({"run_coordinator": coordinator}))
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert "QUEUED_RUN_COORDINATOR" in instance.get_required_daemon_types()
        daemon: Any = create_daemon_of_type("QUEUED_RUN_COORDINATOR", instance)
        run = instance.create_run_for_job(
            nothing,
            remote_job_origin=remote_origin(nothing.name),
            job_code_origin=dg.reconstructable(nothing).get_python_origin(),
        )
        no_workspace: Any = None
        instance.run_coordinator.submit_run(SubmitRunContext(run, no_workspace))
        was_due = due.is_set()
        instance.run_coordinator.cancel_run(run.run_id)
        workspace: Any = SimpleNamespace(instance=instance)
        shutdown = Waiting()
        loop = daemon.core_loop(workspace, shutdown)
        while next(loop) is not None:
            pass

    assert was_due and not due.is_set()
    assert (due.seconds, shutdown.seconds) == (0.5, None)

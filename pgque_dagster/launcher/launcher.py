"""`WarmRunLauncher`: gives runs of batches to processes that are kept between runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import dagster as dg

from ..project.keys import BATCH_ID, DIED, WARM, WARM_PROCESS
from .dagster_internals import (
    evaluate_sensors_often,
    health,
    reference_of,
    server_of,
    with_batch_sensors,
)
from .liveness import Address
from .pool import Pool
from .process import Code

_NO_PROCESS = "none"


class WarmRunLauncher(dg.DefaultRunLauncher):
    """Launches runs of batches in warm processes, and other runs like Dagster's default launcher.

    A warm process has imported the code location and keeps its Spark session between runs. It is
    a child of the process that launches, so the code location must be importable there.

    Args:
        processes: the maximum number of warm processes. While all are busy, a run starts in its own
            process.
        max_runs: a process is replaced after this many runs.
        inst_data: the data with which Dagster creates the launcher.

    Example:
        .. code-block:: yaml

            run_launcher:
              module: pgque_dagster.launcher
              class: WarmRunLauncher
              config:
                processes: 2
    """

    def __init__(self, processes: int, max_runs: int, inst_data: Any = None) -> None:
        for name, value in {"processes": processes, "max_runs": max_runs}.items():
            if value < 1:
                raise dg.DagsterInvalidDefinitionError(
                    f"{name} of WarmRunLauncher is {value}: it must be 1 or more"
                )
        super().__init__(inst_data)
        evaluate_sensors_often()
        self._pool = Pool(processes, max_runs, self._fail, self._is_finished)

    @classmethod
    def config_type(cls) -> Any:
        """Returns the settings, as Dagster checks them."""
        return {
            "processes": dg.Field(dg.IntSource, default_value=2, is_required=False),
            "max_runs": dg.Field(dg.IntSource, default_value=100, is_required=False),
        }

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> Self:
        """Creates the launcher from checked settings."""
        return cls(inst_data=inst_data, **config_value)

    def prepare(self, workspace: Any) -> None:
        """Starts a process for each code location that consumes queues, before its first run."""
        for name, repository in with_batch_sensors(workspace):
            code = _code(repository, workspace, name)
            if code is not None:
                self._pool.prepare(code)

    def launch_run(self, context: Any) -> None:
        """Launches a run: warm if it is for a batch and a process is free or may be started."""
        run = context.dagster_run
        code = _code_of_run(context) if _shall_be_warm(run) else None
        if code is None:
            self._launch_cold(context)
            return
        # Once more if the process died while it was idle.
        while (process := self._pool.take(code, run.run_id)) is not None:
            try:
                self._instance.add_run_tags(run.run_id, {WARM_PROCESS: str(process.address)})
                is_started = self._pool.execute(process, reference_of(self._instance))
            except BaseException:
                self._pool.drop(process)
                raise
            if is_started:
                number = f"run {process.runs} of warm process {process.address.pid}"
                self._report(run, f"Launched as {number}.")
                return
        self._report(run, "All warm processes are busy: the run gets a process of its own.")
        self._launch_cold(context)

    def _launch_cold(self, context: Any) -> None:
        run_id = context.dagster_run.run_id
        run = self._instance.get_run_by_id(run_id)
        if run is not None and WARM_PROCESS in run.tags:
            # The tag of a run that this one re-executes, or of a process that died while idle.
            self._instance.add_run_tags(run_id, {WARM_PROCESS: _NO_PROCESS})
        super().launch_run(context)

    def terminate(self, run_id: str) -> bool:
        """Cancels a run. A warm process reads the record of its run every second."""
        run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        if run is None or run.is_finished:
            return False
        address = _address(run)
        if address is None:
            canceled: bool = super().terminate(run_id)  # type: ignore[no-untyped-call]
            return canceled
        self._instance.report_run_canceling(run)
        if address.is_here and not address.is_alive:
            self._fail(run_id, f"warm process {address.pid} is gone")
        record = self._instance.get_run_record_by_id(run_id)
        if record is not None and record.end_time and not record.dagster_run.is_finished:
            # It ended after it was read here.
            self._instance.report_run_canceled(run, message="The run had just ended.")
        return True

    def dispose(self) -> None:
        """Makes the warm processes end."""
        self._pool.close()
        super().dispose()

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Whether run monitoring may ask for the process of a run: yes."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> Any:
        """Tells run monitoring whether the process of a run is alive.

        Monitoring marks a run as failed if its process is gone. Nothing is known about a run that
        is not warm, as with Dagster's default launcher.
        """
        address = _address(run)
        if address is None:
            return health("RUNNING", None)
        if not address.is_here:
            return health("NOT_FOUND", f"its process was on {address.host}, which is not this host")
        if not address.is_alive:
            return health("FAILED", f"warm process {address.pid} is gone")
        return health("RUNNING", None)

    def _is_finished(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        return run is None or run.is_finished

    def _fail(self, run_id: str, reason: str) -> None:
        """Records the end of a run whose process died."""
        run = self._instance.get_run_by_id(run_id) if self.has_instance else None
        if run is None or run.is_finished:
            return
        # Then the sensor need not wait for its lease to end.
        self._instance.add_run_tags(run_id, {DIED: run_id})
        if run.status == dg.DagsterRunStatus.CANCELING:
            self._instance.report_run_canceled(run, message=f"Canceled: {reason}.")
        else:
            self._instance.report_run_failed(run, f"The run has no result: {reason}.")

    def _report(self, run: dg.DagsterRun, message: str) -> None:
        self._instance.report_engine_event(message, run, cls=type(self))


def _address(run: dg.DagsterRun) -> Address | None:
    """Returns the address of a run's warm process; None if the run is not warm."""
    text = run.tags.get(WARM_PROCESS, _NO_PROCESS)
    return None if text == _NO_PROCESS else Address.read(text)


def _shall_be_warm(run: dg.DagsterRun) -> bool:
    return run.tags.get(WARM, str(BATCH_ID in run.tags)).lower() == "true"


def _code_of_run(context: Any) -> Code | None:
    """Returns the code that a run needs; None if this host cannot load it in a warm process."""
    python, remote = context.dagster_run.job_code_origin, context.dagster_run.remote_job_origin
    if python is None or remote is None:
        return None
    return _code(python.repository_origin, context.workspace, remote.location_name)


def _code(repository: Any, workspace: Any, location_name: str) -> Code | None:
    if not Path(repository.executable_path).exists():
        return None
    server = server_of(workspace, location_name)
    return Code(repository.executable_path, dg.serialize_value(repository), server)

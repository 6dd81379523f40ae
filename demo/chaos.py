"""Kills the process of one run while it works on its batch."""

import os
import re
import signal
import time

from .console import say
from .graphql import Dagster, Run

_WORKED_FOR = 4.0  # Seconds. By then the run has claimed its batch and has started Spark.
_STARTED_PROCESS = re.compile(r"Started process for run \(pid: (\d+)\)")


class Chaos:
    """Kills one run. Call `look` repeatedly until `killed` is set."""

    def __init__(self, dagster: Dagster) -> None:
        self._dagster = dagster
        self.killed: str | None = None

    def look(self, runs: list[Run]) -> None:
        """Kills the process of a run that has worked for some seconds, unless it has killed one."""
        if self.killed is not None:
            return
        for run in runs:
            if run.status == "STARTED" and (pid := self._worker(run)) is not None:
                os.kill(pid, signal.SIGKILL)
                self.killed = run.id
                say(f"CHAOS: killed the process of run {run.id[:8]} ({run.consumer}, pid {pid})")
                return

    def _worker(self, run: Run) -> int | None:
        log = self._dagster.log(run.id)
        started = [entry.time for entry in log if entry.kind == "ExecutionStepStartEvent"]
        pids = [int(found[1]) for entry in log if (found := _STARTED_PROCESS.search(entry.message))]
        if not started or not pids or time.time() - started[0] < _WORKED_FOR:
            return None
        try:
            ours = os.getsid(pids[-1]) == self._dagster.session
        except ProcessLookupError:
            return None
        return pids[-1] if ours else None

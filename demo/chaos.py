"""Kills the process of one run while it works on its batch."""

import os
import re
import signal

from harness.graphql import Dagster, Run

from .console import say

_WORKING = "ExecutionStepStartEvent"
_STARTED_PROCESS = re.compile(r"Started process for run \(pid: (\d+)\)")


class Chaos:
    """Kills one run after `begin` is called. Call `look` repeatedly until `killed` is set."""

    def __init__(self, dagster: Dagster) -> None:
        self._dagster = dagster
        self._has_begun = False
        self.killed: str | None = None

    def begin(self) -> None:
        """Makes the next `look` kill a run."""
        self._has_begun = True

    def look(self, runs: list[Run]) -> None:
        """Kills the process of a run that is working on its batch, unless one was killed before."""
        if not self._has_begun or self.killed is not None:
            return
        for run in runs:
            if run.status == "STARTED" and (pid := self._worker(run)) is not None:
                os.kill(pid, signal.SIGKILL)
                self.killed = run.id
                say(f"killed the process of run {run.id[:8]} (pid {pid}) while it applied a batch")
                return

    def _worker(self, run: Run) -> int | None:
        log = self._dagster.log(run.id)
        is_working = any(entry.kind == _WORKING for entry in log)
        pids = [int(found[1]) for entry in log if (found := _STARTED_PROCESS.search(entry.message))]
        if not is_working or not pids:
            return None
        try:
            ours = os.getsid(pids[-1]) == self._dagster.session
        except ProcessLookupError:
            return None
        return pids[-1] if ours else None

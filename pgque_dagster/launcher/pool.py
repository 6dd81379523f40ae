"""The warm processes of a launcher, and which of them gets a run."""

import threading
from collections.abc import Callable

from .dagster_internals import queue_is_due
from .process import Code, WarmProcess
from .source_files import as_they_are_now

# A process closes Dagster's storage after its run is recorded as ended, before it is idle.
_CLOSING_SECONDS = 5.0
# A small batch's run is over within a second of its ack; another process needs ten to start Spark.
_BUSY_SECONDS = 1.0
# It imports the code location and opens a Spark session. Another one would take as long.
_PREPARING_SECONDS = 30.0


class Pool:
    """Starts, lends and ends warm processes. It is thread-safe.

    Args:
        size: the maximum number of processes.
        max_runs: a process is replaced after this many runs.
        on_lost_run: is called with a run whose process died, and what is known about the death.
        is_finished: returns whether a run is recorded as ended.
    """

    def __init__(
        self,
        size: int,
        max_runs: int,
        on_lost_run: Callable[[str, str], None],
        is_finished: Callable[[str], bool],
    ) -> None:
        self._size = size
        self._max_runs = max_runs
        self._on_lost_run = on_lost_run
        self._is_finished = is_finished
        self._lock = threading.Condition()
        # Processes that may get another run; the one used last is at the end.
        self._processes: list[WarmProcess] = []
        # What the last run of each code location needed.
        self._codes: list[Code] = []

    def prepare(self, code: Code) -> None:
        """Starts a process of the code before its first run, unless there is one, or no room."""
        with self._lock:
            if len(self._processes) < self._size and code not in self._codes:
                self._codes.append(code)
                process = self._start(code)
                if process is not None:
                    process.prepare()

    def take(self, code: Code, run_id: str) -> WarmProcess | None:
        """Lends a process to a run.

        Returns:
            A process that has the code, otherwise a new one; None if all are busy.

        Raises:
            OSError, RuntimeError: if no process can be started.
        """
        with self._lock:
            self._codes = [each for each in self._codes if not code.replaces(each)]
            if code not in self._codes:
                self._codes.append(code)
            # Waiting is quicker than starting another process, and importing everything there.
            if not self._idle_with(code) and self._would_be_second(code):
                self._wait_for_idle(code, _BUSY_SECONDS)
            if not self._idle_with(code) and self._is_preparing(code):
                self._lock.wait_for(lambda: not self._is_preparing(code), _PREPARING_SECONDS)
            if not self._idle_with(code) and self._is_closing(code):
                self._wait_for_idle(code, _CLOSING_SECONDS)
            for process in self._idle():
                if code.replaces(process.code) or process.has_old_code():
                    self._retire(process)
            idle = self._idle_with(code)
            lent = idle[-1] if idle else self._start(code)
            if lent is not None:
                lent.run_id = run_id
            return lent

    def execute(self, process: WarmProcess, reference: str) -> bool:
        """Starts the run to which a process is lent, of the instance of the reference.

        Returns:
            Whether it is started. It is not if the process has died.
        """
        with self._lock:
            try:
                process.execute(reference)
            except OSError:
                self._retire(process)
                return False
            return True

    def drop(self, process: WarmProcess) -> None:
        """Takes back a process that did not start its run."""
        with self._lock:
            process.run_id = None
            self._retire(process)

    def close(self) -> None:
        """Makes all processes end, after their run if they have one."""
        with self._lock:
            self._size = 0
            for process in list(self._processes):
                self._retire(process)

    def _idle(self) -> list[WarmProcess]:
        return [process for process in self._processes if process.run_id is None]

    def _idle_with(self, code: Code) -> list[WarmProcess]:
        """The idle processes of a code; one whose files are unknown may have older code."""
        found = [process for process in self._idle() if process.code == code]
        return [process for process in found if process.files is not None]

    def _wait_for_idle(self, code: Code, seconds: float) -> None:
        self._lock.wait_for(lambda: bool(self._idle_with(code)), seconds)

    def _is_preparing(self, code: Code) -> bool:
        idle = self._idle()
        return any(process.files is None for process in idle if process.code == code)

    def _would_be_second(self, code: Code) -> bool:
        """Whether a process would be started although another one with the code is warm."""
        return len(self._processes) < self._size and any(
            process.runs > 1 for process in self._processes if process.code == code
        )

    def _is_closing(self, code: Code) -> bool:
        """Returns whether a process of the code has a run that is over."""
        return any(
            process.run_id is not None and self._is_finished(process.run_id)
            for process in self._processes
            if process.code == code
        )

    def _start(self, code: Code) -> WarmProcess | None:
        if len(self._processes) >= self._size:
            idle = self._idle()
            if not idle:
                return None
            self._retire(idle[0])
        process = WarmProcess(code, self._on_idle, self._on_end, None)
        self._processes.append(process)
        return process

    def _replace(self, process: WarmProcess) -> None:
        """Ends a process, and starts another one that prepares before the next run.

        A process that has never reported which files it loads is not replaced, because the new one
        might get a run after these files have changed.
        """
        if process not in self._processes:
            return
        self._retire(process)
        if process.files and len(self._processes) < self._size:
            files = as_they_are_now(process.files)
            try:
                other = WarmProcess(process.code, self._on_idle, self._on_end, files)
            except (OSError, RuntimeError):  # Without room for a thread, it is a RuntimeError.
                return  # The next run tries again, and reports the error.
            other.prepare()
            self._processes.insert(0, other)

    def _retire(self, process: WarmProcess) -> None:
        if process in self._processes:
            self._processes.remove(process)
        process.retire()

    def _on_idle(self, process: WarmProcess, succeeded: bool | None) -> None:
        with self._lock:
            if succeeded is None:  # It is prepared.
                self._lock.notify_all()
                return
            process.run_id, process.is_executing = None, False
            if process.code not in self._codes:
                self._retire(process)
            # After a failure or a cancelation, its Spark session may be broken.
            elif not succeeded or process.runs >= self._max_runs:
                self._replace(process)
            elif process in self._processes:
                self._processes.remove(process)
                self._processes.append(process)
            self._lock.notify_all()
        queue_is_due()

    def _on_end(self, process: WarmProcess, status: int) -> None:
        with self._lock:
            lost = process.run_id if process.is_executing else None
            if lost is not None:
                self._replace(process)
            elif process in self._processes:
                self._processes.remove(process)
            self._lock.notify_all()
        if lost is not None:
            self._on_lost_run(lost, _describe(process, status))


def _describe(process: WarmProcess, status: int) -> str:
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    return f"the warm process {process.address.pid} on {process.address.host} {how}"

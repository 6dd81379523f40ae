"""Watches the queue and Dagster's runs: prints progress and failures, and waits for the end."""

import textwrap
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from harness.graphql import Dagster, Run
from pgque_dagster.client import Client
from pgque_dagster.client.peeking import retained_ticks

from .bank import QUEUE, Load
from .chaos import Chaos
from .console import DemoError, busy, say

_UNFINISHED = ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")
_TICK_SECONDS = 5.0
_STALLED_SECONDS = 600.0


class Watch:
    """Watches the runs of the queue's batches.

    Args:
        client: a client of the queue's database.
        dagster: the Dagster with the runs.
        load: checked at each look until the queue is to be drained.
        chaos: looks for a run to kill at each look, if given.
        interval: seconds between two lines of progress.
    """

    def __init__(
        self,
        client: Client,
        dagster: Dagster,
        load: Load,
        chaos: Chaos | None,
        *,
        interval: float = 5.0,
    ) -> None:
        self._client = client
        self._dagster = dagster
        self._load: Load | None = load
        self._chaos = chaos
        self._interval = interval
        self._next_line = time.monotonic() + interval
        self._awaited = ""
        self._reported: set[str] = set()
        self.runs: list[Run] = []

    @property
    def started(self) -> list[Run]:
        """The runs that are in progress or have succeeded."""
        return [run for run in self.runs if run.status in ("STARTED", "SUCCESS")]

    @property
    def succeeded(self) -> int:
        """How many runs have succeeded."""
        return sum(run.status == "SUCCESS" for run in self.runs)

    def wait(self, what: str, has_happened: Callable[[], bool]) -> None:
        """Waits until something has happened.

        Raises:
            DemoError: if it does not happen for a long time.
        """
        deadline = time.monotonic() + _STALLED_SECONDS
        self._awaited = f"waiting for {what}; "
        while not has_happened():
            if time.monotonic() > deadline:
                raise DemoError(
                    f"waited {_STALLED_SECONDS:.0f} s for {what}: {self._behind()};"
                    f" runs: {self._statuses()}"
                )
            time.sleep(0.5)
            self.look()

    def look(self) -> None:
        """Reads the runs once, and prints new failures and, if it is time, a line of progress."""
        if self._load is not None:
            self._load.check()
        self.runs = self._dagster.runs({"pgque/queue": QUEUE})
        if self._chaos is not None:
            self._chaos.look(self.runs)
        self._report_failures()
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + self._interval
            say(f"{self._awaited}{self._behind()}; runs: {self._statuses()}{busy()}")

    def drain(self, log: Path) -> None:
        """Waits until each consumer has acked all events committed so far, and all runs have ended.

        Args:
            log: Dagster's log, which the error names.

        Raises:
            DemoError: if, for a long time, no event is consumed and no run ends.
        """
        self._load = None
        self._awaited = ""
        last = _tick(self._client)
        left, progress_at = self._left(), time.monotonic()
        next_tick = time.monotonic() + _TICK_SECONDS
        while not self._is_drained(last):
            if (now_left := self._left()) < left:
                left, progress_at = now_left, time.monotonic()
            if time.monotonic() > progress_at + _STALLED_SECONDS:
                raise DemoError(
                    f"nothing was consumed for {_STALLED_SECONDS:.0f} s: {self._behind()};"
                    f" runs: {self._statuses()}; read {log}"
                )
            if time.monotonic() > next_tick:
                # The sensor opens a batch of few events only after a tick that makes them old.
                next_tick = time.monotonic() + _TICK_SECONDS
                self._client.force_next_tick(QUEUE)
            time.sleep(0.5)
            self.look()

    def _is_drained(self, tick: int) -> bool:
        consumers = self._client.consumers(QUEUE)
        acked = all(x.batch_id is None and (x.last_tick_id or 0) >= tick for x in consumers)
        return acked and not any(run.status in _UNFINISHED for run in self.runs)

    def _left(self) -> tuple[int, int]:
        """How many events, and then how many runs, are left."""
        events = sum(x.pending_events or 0 for x in self._client.consumers(QUEUE))
        return events, sum(run.status in _UNFINISHED for run in self.runs)

    def _behind(self) -> str:
        pending = (f"{x.name} {x.pending_events}" for x in self._client.consumers(QUEUE))
        return f"events behind: {', '.join(pending)}"

    def _statuses(self) -> str:
        counts = Counter(run.status for run in self.runs)
        return ", ".join(f"{count} {status.lower()}" for status, count in counts.items()) or "none"

    def _report_failures(self) -> None:
        for run in self.runs:
            if run.status == "FAILURE" and run.id not in self._reported:
                self._reported.add(run.id)
                why = textwrap.shorten(self._dagster.failure(run.id), 160, placeholder=" ...")
                say(f"run {run.id[:8]} ({run.consumer}, attempt {run.attempt}) failed: {why}")


def _tick(client: Client) -> int:
    """Ticks the queue, and returns a tick that covers everything committed before the call.

    The tick must be made here: one that the ticker makes at the same time may have an older
    snapshot.
    """
    while True:
        client.force_next_tick(QUEUE)
        if client.ticker():
            return client.run(retained_ticks(QUEUE, "latest", None))[1]
        time.sleep(0.05)

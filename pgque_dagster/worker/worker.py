"""`pgque worker`: runs batches in one warm process, woken by NOTIFY.

Each batch is a run of its own, recorded in Dagster's instance like any other, under the tags that
the sensor gives. Which batches get a run is decided by the same code, and the lease guards them,
so sensors and workers may serve one consumer together.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg
import psycopg
from psycopg import sql

from ..client import Client, ConnectionFailed, DatabaseError, PgqueError, calls
from ..client.connection import connect
from ..client.cooperative import member_name
from ..client.errors import translated
from ..client.models import Lease
from ..consumers import Consumer
from ..keys import CONSUMER, QUEUE, SUBCONSUMER, WORKER
from ..resource import PgqueResource
from ..sensors.cursor import SensorCursor
from ..sensors.run_requests import BatchPolicy, Findings, find_batches

logger = logging.getLogger("pgque.worker")

_LONGEST_WAIT = 30.0
_FIRST_WAIT = 0.2
# How long a wait for NOTIFY goes on after `stop`.
_STEP = 0.5

Bell = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True)
class _Running:
    run_id: str
    queue: str
    holder: str


class Worker:
    """Runs the batches of consumers in this process, one after another.

    Args:
        job: has the consumers' assets, with their resources; they are made for each run, and
            dagster-pyspark's session stays with the process.
        consumers: whose batches to run.
        instance: where runs are recorded. It must be a persistent one.
        pgque: the database.
        policy: when a batch is opened and how often it is tried.
        poll: how long to wait without being woken; batches that are due by time alone, retries
            and a lost connection are noticed then.
    """

    def __init__(
        self,
        job: dg.JobDefinition,
        consumers: Sequence[Consumer],
        instance: dg.DagsterInstance,
        pgque: PgqueResource,
        policy: BatchPolicy,
        *,
        poll: timedelta = timedelta(seconds=5),
    ) -> None:
        self._job = job
        self._consumers = consumers
        self._instance = instance
        self._pgque = pgque
        self._policy = policy
        self._poll = poll.total_seconds()
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._cursor = SensorCursor()
        self._stopped = threading.Event()
        self._running: _Running | None = None
        self._told: frozenset[str] = frozenset()

    def stop(self) -> None:
        """Makes `run` return after the batch in progress. May be called from a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Runs batches until `stop`; waits for a database that goes away, longer each time.

        Raises:
            PgqueError: for what waiting does not mend, such as a missing schema or role.
        """
        wait = _FIRST_WAIT
        while not self._stopped.is_set():
            try:
                with self._pgque.client() as client, _listening(client.url, self._queues()) as bell:
                    wait = _FIRST_WAIT
                    self._serve(client, bell)
            except (ConnectionFailed, DatabaseError) as error:
                logger.warning("%s Trying again in %.1f s.", error, wait)
                self._stopped.wait(wait)
                wait = min(wait * 2, _LONGEST_WAIT)

    def release(self) -> None:
        """Gives up the batch in progress: its claim is free and its run canceled.

        For whoever cannot wait for its end. What the run does afterwards comes to nothing, since
        its ack is refused; the process should end.
        """
        running = self._running
        if running is None:
            return
        with suppress(PgqueError), Client(self._pgque.database_url()) as client:
            info = client.lease_info(running.queue, running.holder)
            if info and info.owner and info.until and info.owner.endswith(running.run_id):
                client.run(
                    calls.batches.release(
                        Lease(info.batch_id, info.owner, info.epoch, info.until, 0, 0)
                    )
                )
        run = self._instance.get_run_by_id(running.run_id)
        if run is not None and not run.is_finished:
            self._instance.report_run_canceled(run, message="The worker was stopped.")

    def _queues(self) -> list[str]:
        return sorted({consumer.queue for consumer in self._consumers})

    def _serve(self, client: Client, bell: Bell) -> None:
        while not self._stopped.is_set():
            # One at a time: while it runs, another worker may take what else is due.
            findings = find_batches(
                self._instance,
                client,
                self._consumers,
                self._policy,
                cursor=self._cursor,
                max_runs=1,
            )
            self._cursor = findings.cursor
            self._tell(findings)
            for request in findings.requests:
                self._execute(request)
            if not findings.requests:
                self._wait(bell)

    def _execute(self, request: dg.RunRequest) -> None:
        run_id = str(uuid.uuid4())
        self._running = _Running(run_id, request.tags[QUEUE], _holder(request.tags))
        try:
            result = self._job.execute_in_process(
                instance=self._instance,
                asset_selection=request.asset_selection,
                tags={**request.tags, WORKER: self._name},
                run_id=run_id,
                raise_on_error=False,
            )
        finally:
            self._running = None
        logger.info(
            "run %s of %s: %s",
            run_id[:8],
            request.run_key,
            "done" if result.success else "failed",
        )

    def _wait(self, bell: Bell) -> None:
        """Waits for a tick's NOTIFY, in steps so short that `stop` is seen."""
        ends_at = time.monotonic() + self._poll
        while not self._stopped.is_set() and time.monotonic() < ends_at:
            with translated():
                heard = list(bell.notifies(timeout=min(_STEP, self._poll), stop_after=1))
            if heard:
                return

    def _tell(self, findings: Findings) -> None:
        """Logs what is new among the reasons: most are the same at each look."""
        for reason in findings.reasons:
            if reason not in self._told:
                logger.info(reason)
        self._told = frozenset(findings.reasons)


def _holder(tags: Mapping[str, str]) -> str:
    """The name under which the queue knows who holds a run's batch."""
    part = tags.get(SUBCONSUMER)
    return tags[CONSUMER] if part is None else member_name(tags[CONSUMER], part)


@contextmanager
def _listening(url: str, queues: Sequence[str]) -> Iterator[Bell]:
    """Opens a connection that hears of each tick of the queues.

    Yields:
        The connection. Behind a transaction pooler it hears nothing, and polling remains.
    """
    with connect(url) as connection:
        for queue in queues:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(f"pgque_{queue}")))
        yield connection

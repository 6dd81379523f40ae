"""`pgque worker`: runs batches in one warm process, woken by NOTIFY.

Each batch is a Dagster run, recorded in the instance with the tags that the sensor also sets. The
sensor's code decides which batches get a run, and each batch is under a lease, so sensors and
workers may serve the same consumer.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from ..client import Client, ConnectionFailed, DatabaseError, PgqueError, calls
from ..client.holder import Holder
from ..client.models import Lease
from ..project.consumers import AssetConsumer
from ..project.keys import CONSUMER, QUEUE, WORKER, holder_of
from ..project.naming import run_of_owner
from ..project.resource import PgqueResource
from ..sensors.cursor import SensorCursor
from ..sensors.run_requests import BatchPolicy, Findings, find_batches
from ..sensors.tick_wait import ListeningConnection, is_notified, listening

logger = logging.getLogger("pgque.worker")

_LONGEST_WAIT = 30.0
_FIRST_WAIT = 0.2
# Each wait for NOTIFY is this short, so that `stop` takes effect soon.
_STEP = 0.5


@dataclass(frozen=True)
class _Running:
    run_id: str
    holder: Holder


class Worker:
    """Runs the batches of consumers in this process, one after another.

    Args:
        job: has the consumers' assets and their resources. Resources are created anew for each run;
            dagster-pyspark's session stays with the process.
        consumers: the consumers whose batches to run.
        instance: records the runs. It must be persistent.
        pgque: the database.
        policy: when a batch is opened and how many attempts it gets.
        poll: the longest wait between two checks for batches. They find batches that are due by
            age, retries, and a lost connection, which no NOTIFY announces.
    """

    def __init__(
        self,
        job: dg.JobDefinition,
        consumers: Sequence[AssetConsumer],
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
        self._logged_reasons: frozenset[str] = frozenset()

    def stop(self) -> None:
        """Makes `run` return after the batch in progress. Is safe in a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Runs batches until `stop`. Retries with growing waits while the database is unavailable.

        Raises:
            PgqueError: for errors that waiting does not resolve, such as a missing schema or role.
        """
        wait = _FIRST_WAIT
        while not self._stopped.is_set():
            try:
                with (
                    self._pgque.client() as client,
                    listening(client.url, self._queues()) as listener,
                ):
                    wait = _FIRST_WAIT
                    self._serve(client, listener)
            except (ConnectionFailed, DatabaseError) as error:
                logger.warning("%s Retrying in %.1f s.", error, wait)
                self._stopped.wait(wait)
                wait = min(wait * 2, _LONGEST_WAIT)

    def release(self) -> None:
        """Releases the lease of the batch in progress and records its run as canceled.

        Call this before ending the process without waiting for the batch. If the run continues, its
        ack fails.
        """
        running = self._running
        if running is None:
            return
        with suppress(PgqueError), Client(self._pgque.database_url()) as client:
            info = client.lease_info(running.holder.queue, running.holder.name)
            if info and info.owner and info.until and run_of_owner(info.owner) == running.run_id:
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

    def _serve(self, client: Client, listener: ListeningConnection) -> None:
        while not self._stopped.is_set():
            # Request one run only, so that other workers can take further batches meanwhile.
            findings = find_batches(
                self._instance,
                client,
                self._consumers,
                self._policy,
                cursor=self._cursor,
                deployment=self._pgque.deployment_of(self._instance),
                max_runs=1,
            )
            self._cursor = findings.cursor
            self._log_new_reasons(findings)
            for request in findings.requests:
                self._execute(request)
            if not findings.requests:
                self._wait(listener)

    def _execute(self, request: dg.RunRequest) -> None:
        run_id = str(uuid.uuid4())
        tags = request.tags
        self._running = _Running(run_id, holder_of(tags[QUEUE], tags[CONSUMER], tags))
        try:
            result = self._job.execute_in_process(
                instance=self._instance,
                asset_selection=request.asset_selection,
                tags={**tags, WORKER: self._name},
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

    def _wait(self, listener: ListeningConnection) -> None:
        """Waits up to `poll` for a tick's NOTIFY, or until `stop`."""
        ends_at = time.monotonic() + self._poll
        while not self._stopped.is_set() and time.monotonic() < ends_at:
            if is_notified(listener, min(_STEP, self._poll)):
                return

    def _log_new_reasons(self, findings: Findings) -> None:
        """Logs reasons that differ from the last check, since most repeat every time."""
        for reason in findings.reasons:
            if reason not in self._logged_reasons:
                logger.info(reason)
        self._logged_reasons = frozenset(findings.reasons)

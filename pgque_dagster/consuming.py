"""How a step consumes batches: claim, compute, store, check, ack, in this order.

The order is what the promise rests on. Dagster resumes a generator after `yield Output` once the IO
manager has stored it, so the ack stands behind the yield; on an exception, from the body or from
storing, it is never reached.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg

from .at_work import at_work
from .batch_metadata import Report, TimedBatch
from .client import (
    AckResult,
    Batch,
    BatchLeased,
    BatchNotOpen,
    Client,
    LeaseKeeper,
    Limits,
    PgqueError,
    QueueNotFound,
)
from .client.shared import claim_shared
from .lineage import dead_letters_key
from .outputs import Event, Outputs, Record
from .resources import PgqueResource
from .spark import SparkBatch, clear_causes
from .spark.session import open_session
from .tags import BATCH_ID, SUBCONSUMER
from .timeouts import TimeLimit

# What a run without a batch of its own (materialized by hand), or beyond it, takes at once.
_AT_ONCE = Limits(max_count=1_000_000)


@dataclass(frozen=True)
class Consumption:
    """What an asset consumes and how: the decorators' own arguments."""

    queue: str
    consumer: str
    lease_ttl: timedelta
    slices: int
    max_batches: int
    max_seconds: float | None
    timeout: timedelta | None
    wants_values: bool
    blocking: frozenset[str]

    def __str__(self) -> str:
        return f"{self.queue}/{self.consumer}"


@dataclass(frozen=True)
class Step:
    """A running step.

    Args:
        context: of the step.
        client: the database.
        consumption: what to consume.
        pyspark: the resource that has the Spark session.
        call: the body, less what it wants beside the batch.
    """

    context: dg.AssetExecutionContext
    client: Client
    consumption: Consumption
    pyspark: Any
    call: Callable[[SparkBatch], Any]

    def run(self) -> Iterator[Event | Record]:
        """Consumes the run's batch, or the next one, and as many after it as are wanted."""
        started = time.monotonic()
        limit = self.consumption.max_seconds
        for number in range(self.consumption.max_batches):
            if number and limit is not None and time.monotonic() - started >= limit:
                self.context.log.info(f"Stopped after {number} batches: {limit} s are over.")
                return
            batch = self._claim(is_first=not number)
            if batch is None or not (yield from self._consume(batch, is_first=not number)):
                return

    def _claim(self, *, is_first: bool) -> Batch | None:
        """Claims a batch with events; None, with the reason logged, if there is none to have."""
        tag = self.context.run.tags.get(BATCH_ID) if is_first else None
        while True:
            try:
                batch = self._claim_one(int(tag) if tag else None)
            except (BatchLeased, BatchNotOpen) as error:
                if is_first:
                    self.context.log.warning(f"Skipped: {error}")
                return None
            if batch is None:
                if is_first:
                    self.context.log.info(f"Skipped: {self.consumption} has no batch yet.")
                return None
            if tag or batch.read_plan(1).events:
                return batch
            batch.ack()

    def _claim_one(self, batch_id: int | None) -> Batch | None:
        """Claims from the consumer, or from that part of a shared one which the run is for."""
        consumption = self.consumption
        owner = f"dagster run {self.context.run.run_id}"
        part = self.context.run.tags.get(SUBCONSUMER)
        if part is None:
            return self.client.claim(
                consumption.queue,
                consumption.consumer,
                owner=owner,
                ttl=consumption.lease_ttl,
                limits=_AT_ONCE,
                batch_id=batch_id,
            )
        return claim_shared(
            self.client,
            consumption.queue,
            consumption.consumer,
            part,
            owner=owner,
            ttl=consumption.lease_ttl,
            limits=_AT_ONCE,
            batch_id=batch_id,
        )

    def _consume(self, batch: Batch, *, is_first: bool) -> Generator[Event | Record, None, bool]:
        """Works on a batch and acks it, or gives it back; returns whether it was acked."""
        # GeneratorExit, too, must release: Dagster raises it when storing the output failed.
        try:
            with batch.kept() as keeper:
                session = open_session(self.pyspark)
                address = self.client.url
                slices = self.consumption.slices
                spark_batch = TimedBatch(session, batch, address, slices=slices)
                acked = yield from self._work(batch, spark_batch, keeper, is_first=is_first)
        except BaseException:
            with suppress(PgqueError):
                batch.release()
            raise
        return acked

    def _work(
        self, batch: Batch, spark_batch: TimedBatch, keeper: LeaseKeeper, *, is_first: bool
    ) -> Generator[Event | Record, None, bool]:
        keys = dict(self.context.assets_def.keys_by_output_name)
        outputs = Outputs(
            self.context, keys, self.consumption.wants_values, self.consumption.blocking
        )
        name = f"batch {batch.batch_id} of {self.consumption}"
        report = Report(self.client, batch, spark_batch)
        failed: list[str] = []
        try:
            with (
                clear_causes(),
                at_work(self.context.run.run_id, keys.values(), spark_batch),
                TimeLimit(spark_batch.spark, self.consumption.timeout, name) as limit,
            ):
                for event in limit.iterate(lambda: outputs.events(self.call(spark_batch))):
                    failed += outputs.failed_checks(event)
                    metadata = report.with_output()
                    if is_first:
                        outputs.describe(event, metadata)
                        yield event
                    else:
                        yield from outputs.record(event, metadata)
        finally:
            spark_batch.close()
        if failed:
            self._give_back(batch, name, failed, is_first=is_first)
            return False
        keeper.check()
        result, figures = report.ack()
        yield from self._tell(name, keys.values(), result, figures)
        return True

    def _give_back(self, batch: Batch, name: str, checks: list[str], *, is_first: bool) -> None:
        what = f"{name} is not acked: {', '.join(checks)} failed"
        if not is_first:
            raise dg.Failure(what, allow_retries=False)
        # Dagster itself fails the step for the checks of what it was yielded.
        self.context.log.error(what)
        batch.release()

    def _tell(
        self, name: str, keys: Iterable[dg.AssetKey], result: AckResult, figures: dict[str, Any]
    ) -> Iterator[Record]:
        self.context.log.info(
            f"Acked {name}: {result.nacked} events to be delivered again, "
            f"{result.dead_lettered} dead letters."
        )
        for key in keys:
            yield dg.AssetObservation(key, metadata=figures)
        if result.dead_lettered:
            yield dg.AssetObservation(
                dead_letters_key(self.consumption.queue),
                metadata={
                    "dead_lettered": result.dead_lettered,
                    "consumer": self.consumption.consumer,
                    "batch_id": figures[BATCH_ID],
                },
            )


def consume(
    context: dg.AssetExecutionContext,
    pgque: PgqueResource,
    pyspark: Any,
    consumption: Consumption,
    call: Callable[[SparkBatch], Any],
) -> Iterator[Event | Record]:
    """Consumes batches in a step.

    Raises:
        QueueNotFound: if there is no such queue.
        BodyTimedOut: if the body took longer than it may.
        LeaseLost: if another owner took the batch over.
    """
    with pgque.client() as client:
        try:
            pgque.ensure_consumer(client, consumption.queue, consumption.consumer)
        except QueueNotFound as error:
            declared = ", ".join(dict.fromkeys([*pgque.queues, *pgque.queue_options])) or "none"
            raise QueueNotFound(
                str(error.args[0]),
                f"The resource pgque declares {declared}: add the queue to its `queues`, or "
                f"correct queue= of {context.op_def.name}.",
            ) from error
        yield from Step(context, client, consumption, pyspark, call).run()

"""How a step consumes batches: claim, compute, store, check, ack, in this order.

The order is what the promise rests on. Dagster resumes a generator after `yield Output` once the IO
manager has stored it, so the ack stands behind the yield; on an exception, from the body or from
storing, it is never reached.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg

from ..client import (
    AckResult,
    Batch,
    Client,
    ConsumerNotFound,
    LeaseKeeper,
    PgqueError,
    QueueNotFound,
)
from ..consumers import refuse_rivals
from ..keys import BATCH_ID, dead_letters_key
from ..registration import ensure_consumer
from ..resource import PgqueResource
from ..spark import DatabaseAddress, SparkBatch, clear_executor_errors
from ..spark.cluster.session import open_session
from ..spark.cluster.time_limit import TimeLimit
from .ack_gate import AckGate
from .claims import next_batches
from .consumption import Consumption
from .current_batch import working_on
from .metadata import Report, TimedBatch
from .outputs import AssetRecord, Outputs, StepResult


@dataclass(frozen=True)
class Step:
    """A running step.

    Args:
        context: of the step.
        client: the database.
        address: how executors find it.
        consumption: what to consume.
        pyspark: the resource that has the Spark session.
        call: the body, less what it wants beside the batch.
    """

    context: dg.AssetExecutionContext
    client: Client
    address: DatabaseAddress
    consumption: Consumption
    pyspark: Any
    call: Callable[[SparkBatch], Any]

    def run(self, batches: Iterable[Batch]) -> Iterator[StepResult | AssetRecord]:
        """Consumes batches, each before the next is asked for, until one is not acked."""
        number = -1
        for number, batch in enumerate(batches):
            if not (yield from self._consume(batch, is_first=not number)):
                return
        if number < 0:
            yield from self._skip()

    def _skip(self) -> Iterator[StepResult]:
        """Leaves the assets out, and their checks, whose outputs Dagster wants in any case."""
        assets = self.context.assets_def
        for spec in assets.check_specs:
            name = assets.get_output_name_for_asset_check_key(spec.key)
            yield dg.Output(None, output_name=name)

    def _consume(
        self, batch: Batch, *, is_first: bool
    ) -> Generator[StepResult | AssetRecord, None, bool]:
        """Works on a batch and acks it, or gives it back; returns whether it was acked."""
        # GeneratorExit, too, must release: Dagster raises it when storing the output failed.
        try:
            with batch.keep_alive() as keeper:
                session = open_session(self.pyspark)
                spark_batch = TimedBatch(
                    session,
                    batch,
                    self.client.url,
                    slices=self.consumption.slices,
                    address=self.address,
                )
                acked = yield from self._work(batch, spark_batch, keeper, is_first=is_first)
        except BaseException:
            with suppress(PgqueError):
                batch.release()
            raise
        return acked

    def _work(
        self, batch: Batch, spark_batch: TimedBatch, keeper: LeaseKeeper, *, is_first: bool
    ) -> Generator[StepResult | AssetRecord, None, bool]:
        assets = self.context.assets_def
        keys = dict(assets.keys_by_output_name)
        gate = AckGate(keys, list(assets.check_specs))
        outputs = Outputs(
            self.context,
            keys,
            gate,
            self.consumption.returns_nothing,
            self.consumption.wants_values,
        )
        name = f"batch {batch.batch_id} of {self.consumption}"
        report = Report(self.client, batch, spark_batch)
        try:
            with (
                clear_executor_errors(),
                working_on(self.context.run.run_id, keys.values(), spark_batch),
                TimeLimit(spark_batch.spark, self.consumption.timeout, name) as limit,
            ):
                for event in limit.iterate(lambda: outputs.events(self.call(spark_batch))):
                    outputs.admit(event)
                    metadata = report.with_output()
                    if is_first:
                        outputs.describe(event, metadata)
                        yield event
                    else:
                        yield from outputs.record(event, metadata)
                    outputs.passed(event)
        finally:
            spark_batch.close()
        if failed := gate.failed():
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
    ) -> Iterator[AssetRecord]:
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
) -> Iterator[StepResult | AssetRecord]:
    """Consumes batches in a step.

    Raises:
        DagsterInvalidDefinitionError: if another asset of the code location has the same consumer.
        QueueNotFound: if there is no such queue.
        ConsumerNotFound: if the consumer was removed while a batch of it waited for this run.
        ComputeTimedOut: if the body took longer than it may.
        LeaseLost: if another owner took the batch over.
    """
    refuse_rivals(context, str(consumption))
    with pgque.client() as client:
        try:
            _find_consumer(context, client, consumption)
        except QueueNotFound as error:
            declared = ", ".join(dict.fromkeys([*pgque.queues, *pgque.queue_options])) or "none"
            raise QueueNotFound(
                str(error.args[0]),
                f"The resource pgque declares {declared}: add the queue to its `queues`, or "
                f"correct queue= of {context.op_def.name}.",
            ) from error
        batches = next_batches(context, client, consumption)
        address = executors_address(pgque, client.url)
        yield from Step(context, client, address, consumption, pyspark, call).run(batches)


def executors_address(pgque: PgqueResource, url: str) -> DatabaseAddress:
    """Returns how Spark's executors find the database that is at a URL for the driver."""
    named = DatabaseAddress(url_env=pgque.executors_url_env, url_file=pgque.executors_url_file)
    return named if named.options() else DatabaseAddress(url)


def _find_consumer(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption
) -> None:
    """Registers a consumer that is new; one that has a batch for this run must be there."""
    batch_id = context.run.tags.get(BATCH_ID)
    if batch_id is None:
        ensure_consumer(client, consumption.queue, consumption.consumer)
        return
    try:
        client.lease_info(consumption.queue, consumption.consumer)
    except ConsumerNotFound as error:
        raise ConsumerNotFound(
            f"consumer {consumption} was removed while its batch {batch_id} waited for this run",
            f"Register it with `pgque register {consumption.queue} {consumption.consumer}`, and it "
            "goes on at the last tick.",
        ) from error

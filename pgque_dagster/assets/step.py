"""How a step consumes a batch: claim, compute, store, check, ack, in this order.

The guarantee that each event counts once depends on this order. Dagster resumes a generator after
`yield Output` once the IO manager has stored the output, so the ack follows the yield. If the
function or the IO manager raises, the ack is never reached.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import dagster as dg

from .. import spark
from ..client import Batch, Client, ConsumerNotFound, PgqueError, QueueNotFound
from ..client.read_batch import ReadBatch
from ..client.registrations import enter_deployment
from ..project.batch_run import BatchRun
from ..project.consumers import repository_of
from ..project.deployment import consuming_asset
from ..project.registration import ensure_consumer, how_to_register_again
from ..project.resource import PgqueResource
from ..project.step_errors import noting_what_passes
from ..spark.address import DatabaseAddress
from ..spark.cluster.executor_errors import clear_executor_errors
from ..spark.cluster.session import open_session
from .claims import claim_batch
from .consumption import Consumption
from .current_batch import working_on
from .metadata import batch_metadata, data_version
from .outputs import Outputs, StepResult, outputs_are_checked


@dataclass(frozen=True)
class Step:
    """A running step.

    Args:
        context: of the step.
        client: the database.
        address: how Spark's executors find the database.
        consumption: what to consume.
        pyspark: the resource that has the Spark session.
        call: the compute function; it takes only the batch, its other arguments are bound.
    """

    context: dg.AssetExecutionContext
    client: Client
    address: DatabaseAddress
    consumption: Consumption
    pyspark: Any
    call: "Callable[[spark.SparkBatch], Any]"

    def run(self, batch: Batch | None) -> Iterator[StepResult]:
        """Computes a batch, then acks or releases it. Without one, skips the assets."""
        if batch is None:
            yield from skip(self.context)
            return
        name = f"batch {batch.batch_id} of {self.consumption}"
        # BaseException, because Dagster raises GeneratorExit when storing the output failed.
        try:
            with (
                noting_what_passes(self.context.instance, self.context.run.run_id),
                batch.keep_alive() as keeper,
            ):
                outputs = yield from self.compute(batch)
                if failed := outputs.failed_checks():
                    # Dagster itself fails the step because of these checks.
                    self.context.log.error(f"{name} is not acked: {', '.join(failed)} failed")
                    batch.release()
                    return
                keeper.check()
                result = batch.ack()
                self.context.log.info(
                    f"Acked {name}: {result.nacked} events will be delivered again, "
                    f"{result.dead_lettered} became dead letters."
                )
        except BaseException:
            with suppress(PgqueError):
                batch.release()
            raise

    def compute(self, batch: Batch) -> Generator[StepResult, None, Outputs]:
        """Computes a claimed batch, and has Dagster store its outputs."""
        spark_batch = spark.SparkBatch(
            open_session(self.pyspark),
            batch,
            self.client.url,
            slices=self.consumption.slices,
            address=self.address,
        )
        lag, version = batch.info().lag, data_version(self.client, batch)

        def metadata() -> dict[str, Any]:
            found = batch_metadata(batch, spark_batch.plan, lag)
            return found | self.consumption.database.tags

        return compute(self.context, self.consumption, spark_batch, self.call, metadata, version)


def compute(
    context: dg.AssetExecutionContext,
    consumption: Consumption,
    batch: "spark.SparkBatch",
    call: "Callable[[spark.SparkBatch], Any]",
    metadata: Callable[[], dict[str, Any]],
    version: dg.DataVersion,
) -> Generator[StepResult, None, Outputs]:
    """Computes a batch and has Dagster store its outputs.

    Args:
        context: of the step.
        consumption: what is consumed.
        batch: the batch.
        call: the compute function.
        metadata: returns those of an output that is about to be stored.
        version: of the outputs.
    """
    batch.settles_late = outputs_are_checked(context, consumption)
    outputs = Outputs(context, consumption)
    try:
        with (
            clear_executor_errors(),
            working_on(context.run.run_id, outputs.keys.values(), batch),
        ):
            for event in outputs.events(call(batch)):
                yield outputs.described(event, metadata(), version)
            # While the reports of tasks exist, which `close` drops.
            batch.claim.run_checks()
    finally:
        batch.close()
    return outputs


def skip(context: dg.AssetExecutionContext) -> Iterator[StepResult]:
    """Skips the assets. Yields the outputs of their checks, because Dagster requires them."""
    assets = context.assets_def
    for spec in assets.check_specs:
        name = assets.get_output_name_for_asset_check_key(spec.key)
        yield dg.Output(None, output_name=name)


def consume(
    consumption: Consumption,
    context: dg.AssetExecutionContext,
    resources: Mapping[str, PgqueResource],
    pyspark: Any,
    call: "Callable[[spark.SparkBatch], Any]",
) -> Iterator[StepResult]:
    """Consumes the batch of a run in a step.

    Raises:
        QueueNotFound: if there is no such queue.
        ConsumerNotFound: if the consumer was removed while its batch waited for this run.
        CallRefused: if the consumer belongs to another asset, code location or deployment.
        LeaseLost: if another owner took over the batch.
    """
    (pgque,) = resources.values()
    _warn_of_late_checks(context)
    with pgque.client() as client:
        prepare_consumer(consumption, context, pgque, client)
        batch = claim_batch(context, client, consumption)
        address = executors_address(pgque, client.url)
        yield from Step(context, client, address, consumption, pyspark, call).run(batch)


def prepare_consumer(
    consumption: Consumption,
    context: dg.AssetExecutionContext,
    pgque: PgqueResource,
    client: Client,
) -> None:
    """Checks or registers the consumer, before a run claims a batch. Raises as `consume` does."""
    consumption.database.refuse_second_name(client)
    try:
        _find_consumer(context, client, consumption)
        deployment = pgque.deployment_of(context.instance)
        asset = consuming_asset(context, deployment, context.assets_def.keys)
        client.run(enter_deployment(consumption.queue, consumption.consumer, asset))
    except QueueNotFound as error:
        declared = ", ".join(dict.fromkeys([*pgque.queues, *pgque.queue_options])) or "none"
        raise QueueNotFound(
            str(error.args[0]),
            f"The resource {consumption.database.name} declares {declared}: add the queue to "
            f"its `queues`, or correct queue= of {context.op_def.name}.",
        ) from error


def _warn_of_late_checks(context: dg.AssetExecutionContext) -> None:
    """Warns of blocking checks that other definitions have on the step's assets.

    Dagster runs them after the step, and so after the ack.
    """
    assets, repository = context.assets_def, repository_of(context)
    late = [
        f"{key.name} of {key.asset_key.to_user_string()}"
        for key, checks in (repository.asset_checks_defs_by_key if repository else {}).items()
        if key.asset_key in assets.keys and key not in {spec.key for spec in assets.check_specs}
        if any(spec.key == key and spec.blocking for spec in checks.check_specs)
    ]
    if late:
        context.log.warning(
            f"blocking checks that run after the ack: {', '.join(late)}. A batch that fails them "
            "is not delivered again. To keep it, put them in the asset's check_specs."
        )


def spark_batches(
    consumption: Consumption,
    pyspark: Any,
    resources: Mapping[str, PgqueResource],
    claims: Mapping[str, ReadBatch],
) -> "dict[str, spark.SparkBatch]":
    """Returns claims of several databases as batches for Spark, by the names of the databases."""
    session = open_session(pyspark)
    return {
        name: spark.SparkBatch(
            session,
            claim,
            claim.session.url,
            slices=consumption.slices,
            address=executors_address(resources[name], claim.session.url),
        )
        for name, claim in claims.items()
    }


def executors_address(pgque: PgqueResource, url: str) -> DatabaseAddress:
    """Returns how Spark's executors find the database; the driver finds it at `url`."""
    named = DatabaseAddress(url_env=pgque.executors_url_env, url_file=pgque.executors_url_file)
    return named if named.options() else DatabaseAddress(url)


def _find_consumer(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption
) -> None:
    """Registers a new consumer for a run by hand. A run for a batch requires the consumer."""
    run = BatchRun.read(context.run.tags, consumption.holder, consumption.shard)
    if run is None:
        ensure_consumer(
            client,
            consumption.queue,
            consumption.consumer,
            consumption.start_at,
            consumption.partitions,
        )
        return
    try:
        client.lease_info(consumption.queue, run.holder.name)
    except ConsumerNotFound as error:
        if run.holder.slot is not None:
            raise ConsumerNotFound(
                f"{consumption} has no slot {run.holder.slot} any more, for whose batch "
                f"{run.batch_id} this run waited",
                "If the number of slots was changed, the sensor requests runs for the new ones.",
            ) from error
        raise ConsumerNotFound(
            f"consumer {consumption} was removed while its batch {run.batch_id} waited for this "
            "run",
            how_to_register_again(consumption.queue, consumption.consumer, consumption.database),
        ) from error

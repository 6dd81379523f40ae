"""How a step consumes the batches of several shards: claim, store by one commit, ack one by one.

What is stored is final (`spark/sinks/publication.py`). So a step first acks the batches that an
earlier one stored, and computes the others. A shard that cannot be reached is left out.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import Any

import dagster as dg

from .. import spark
from ..client import Batch, InvalidArgument, PgqueError
from ..client.vector import Vector
from ..project.batch_run import BatchRun
from ..project.database import Database
from ..project.keys import BATCH_ID, CONSUMER, QUEUE, SHARDS
from ..project.resource import PgqueResource
from ..project.step_errors import noting_what_passes
from .batch_io_manager import BatchIOManager
from .claims import claim_batch
from .consumption import Consumption
from .earlier_runs import refuse_batch_of_one
from .metadata import plan_metadata, set_aside, ticks
from .new_batches import batch_of
from .outputs import StepResult
from .step import compute, prepare_consumer, skip, spark_batches


def consume_shards(
    consumption: Consumption,
    context: dg.AssetExecutionContext,
    resources: Mapping[str, PgqueResource],
    pyspark: Any,
    call: "Callable[[spark.SparkBatch], Any]",
) -> Iterator[StepResult]:
    """Consumes the batches of a run in a step.

    Raises:
        InvalidArgument: if the IO manager does not store the batches of several shards.
        PgqueError: as for `consume`, if no shard has a batch because of it.
    """
    sink = _sink_of(context)
    with ExitStack() as stack:
        claims: dict[str, Batch] = {}
        errors: list[PgqueError] = []

        for database in _of_run(consumption, context):
            pgque = resources[database.name]
            try:
                client = stack.enter_context(pgque.client())
                of_shard = consumption.of_shard(database)
                prepare_consumer(of_shard, context, pgque, client)
                refuse_batch_of_one(context, client, of_shard, sink)
                batch = claim_batch(context, client, of_shard)
            except PgqueError as error:
                context.log.warning(f"Shard {database.name} is left out: {error}")
                errors.append(error)
                continue
            if batch is not None:
                if not claims:
                    stack.enter_context(noting_what_passes(context.instance, context.run.run_id))
                claims[database.name] = batch
                stack.enter_context(batch.keep_alive())
                stack.callback(_release, batch)
        is_any_stored = False
        if claims:
            is_any_stored = yield from _ack_stored(context, sink, claims, errors)
        if not claims:
            if errors and not is_any_stored:
                raise errors[0]
            yield from skip(context)
            return

        vector = Vector(claims)
        members = spark_batches(consumption, pyspark, resources, claims)
        sharded = spark.ShardedBatch(vector, members)

        def metadata() -> dict[str, Any]:
            return _metadata(vector, sharded)

        version = dg.DataVersion(str(vector.batch_id))
        outputs = yield from compute(context, consumption, sharded, call, metadata, version)
        outputs.failed_checks()
        if not vector.is_stored:
            raise InvalidArgument(
                "the batches of several shards were not stored by the IO manager",
                "Return a DataFrame.",
            )
        for shard in claims:
            _ack(context, sink, vector, shard, vector.batch_id)


def _sink_of(context: dg.AssetExecutionContext) -> Any:
    ((name, key),) = context.assets_def.keys_by_output_name.items()
    manager = getattr(context.resources, context.op_def.output_def_named(name).io_manager_key)
    if not isinstance(manager, BatchIOManager):
        raise InvalidArgument(
            f"{type(manager).__name__} does not store the batches of several shards",
            "Use one of this package, such as DeltaBatchIOManager, for an asset with "
            "databases=[…].",
        )
    return manager.sink_of(key, context.assets_def.metadata_by_key[key], over_shards=True)


def _of_run(consumption: Consumption, context: dg.AssetExecutionContext) -> list[Database]:
    """Returns the shards whose batches the run was requested for; all of them if for none."""
    tags, shards = context.run.tags, consumption.shards
    named = [each for each in shards if BatchRun.read(tags, consumption.holder, each.name)]
    return named or list(shards)


def _ack_stored(
    context: dg.AssetExecutionContext,
    sink: Any,
    claims: dict[str, Batch],
    errors: list[PgqueError],
) -> Generator[StepResult, None, bool]:
    """Acks the batches that an earlier run stored, and takes them and refused ones from `claims`.

    Yields:
        The materialization of each vector that an earlier run stored and did not record.

    Returns:
        Whether there were any.
    """
    claimed = Vector(claims)
    stored: dict[str, int] = {}
    for shard, found in sink.stored(claimed).items():
        batch = claims.pop(shard)
        if isinstance(found, InvalidArgument):
            context.log.error(f"Shard {shard} is left out: {found}")
            errors.append(found)
            continue
        context.log.info(f"An earlier run stored batch {batch.batch_id} of shard {shard}.")
        stored[shard] = found
    vectors = set(stored.values())
    newest = context.instance.fetch_materializations(context.asset_key, limit=100).records
    # Before the acks, because after them no run would record it.
    for vector in vectors.difference(map(batch_of, newest)):
        yield dg.AssetMaterialization(context.asset_key, metadata={BATCH_ID: str(vector)})
    for shard, vector in stored.items():
        _ack(context, sink, claimed, shard, vector)
    return bool(vectors)


def _ack(
    context: dg.AssetExecutionContext, sink: Any, claimed: Vector, shard: str, stored: int
) -> None:
    """Acks a member that the vector `stored` has. If that fails, the next run does it."""
    batch = claimed.members[shard]
    try:
        result = batch.ack()
        context.log.info(
            f"Acked batch {batch.batch_id} of shard {shard}: {result.nacked} events will be "
            f"delivered again, {result.dead_lettered} became dead letters."
        )
        sink.forget(claimed, shard, stored)
    except PgqueError as error:
        context.log.warning(
            f"Batch {batch.batch_id} of shard {shard} is stored. If it is not acked, the next run "
            f"acks it: {error}"
        )


def _release(batch: Batch) -> None:
    # A batch that is acked refuses it.
    with suppress(PgqueError):
        batch.release()


def _metadata(vector: Vector, sharded: "spark.ShardedBatch") -> dict[str, Any]:
    return {
        QUEUE: vector.queue,
        CONSUMER: vector.consumer,
        # As text, because Dagster's pages round large numbers.
        BATCH_ID: str(vector.batch_id),
        SHARDS: {
            shard: {
                BATCH_ID: member.batch_id,
                **ticks(vector.members[shard]),
                "pgque/events": member.event_count,
            }
            for shard, member in sharded.members.items()
        },
        **plan_metadata(sharded.plan),
        **set_aside(vector),
    }

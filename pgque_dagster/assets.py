"""`@pgque_asset`: an asset that consumes one batch and acks it after its output is stored.

The order is what the promise rests on: claim, compute, store, check, ack. Dagster resumes a
generator after `yield Output` once the IO manager has stored it, so the ack stands behind the
yield; on an exception, from the body or from storing, it is never reached.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import dagster as dg

from .client import Batch, BatchLeased, BatchNotOpen, Client, LeaseKeeper, Limits, PgqueError
from .lineage import dead_letters_key, queue_key
from .resources import PgqueResource
from .spark import SparkBatch
from .spark.session import open_session
from .tags import BATCH_ID, CONSUMER, QUEUE

Body = Callable[..., Any]

# The name that @dg.asset gives its output; checks have outputs of their own beside it.
_OUTPUT = "result"

# What a run without a batch of its own (materialized by hand) takes at once.
_BY_HAND = Limits(max_count=1_000_000)


@dataclass(frozen=True)
class _Consumption:
    """The decorator's own arguments."""

    queue: str
    consumer: str
    lease_ttl: timedelta
    slices: int
    blocking_checks: frozenset[str]


def pgque_asset(
    *,
    queue: str,
    consumer: str | None = None,
    lease_ttl: timedelta = timedelta(minutes=1),
    slices: int = 4,
    name: str | None = None,
    deps: Sequence[Any] = (),
    kinds: set[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    check_specs: Sequence[dg.AssetCheckSpec] = (),
    **asset_options: Any,
) -> Callable[[Body], dg.AssetsDefinition]:
    """Makes an asset of a function that takes a `SparkBatch` named `batch`.

    The function may also take `context`, resources and upstream assets, as with `@dg.asset`. It
    returns a value for the IO manager, a MaterializeResult, an Output or None, or yields them. A
    blocking check among `check_specs` that fails keeps the batch from being acked. Where there is
    no batch, or somebody else works on it, the asset is skipped.

    Args:
        queue: the queue's name.
        consumer: the consumer's name; the function's, if left out. One asset a consumer.
        lease_ttl: how long the batch stays with a run that died, before another may take it over;
            a living run renews it.
        slices: how many partitions a large batch is read in, at the most.
        name: the asset's name.
        deps: upstream assets besides the queue and its dead letters.
        kinds: shown with the asset.
        metadata: of the asset.
        check_specs: checks whose results the function yields or returns.
        asset_options: anything else that `@dg.asset` takes.

    Returns:
        The decorator. The asset needs the resources `pgque` (PgqueResource) and `pyspark`
        (of dagster-pyspark, or anything with a `spark_session`).

    Example:
        .. code-block:: python

            @pgque_asset(queue="orders")
            def revenue(batch: SparkBatch):
                return batch.payload("total double not null").groupBy().sum("total")
    """

    def decorate(body: Body) -> dg.AssetsDefinition:
        consumption = _Consumption(
            queue=queue,
            consumer=consumer or name or body.__name__,
            lease_ttl=lease_ttl,
            slices=slices,
            blocking_checks=frozenset(spec.name for spec in check_specs if spec.blocking),
        )
        asset: dg.AssetsDefinition = dg.asset(
            name=name or body.__name__,
            deps=[queue_key(queue), dead_letters_key(queue), *deps],
            kinds={"pyspark"} if kinds is None else kinds,
            metadata={**(metadata or {}), QUEUE: queue, CONSUMER: consumption.consumer},
            check_specs=list(check_specs),
            output_required=False,
            description=asset_options.pop("description", None) or inspect.getdoc(body),
            **asset_options,
        )(_wrap(body, consumption))
        return asset

    return decorate


def _wrap(body: Body, consumption: _Consumption) -> Body:
    """Gives Dagster a function with the body's parameters, less the batch, plus our resources."""
    wanted = inspect.signature(body).parameters
    if "batch" not in wanted:
        raise dg.DagsterInvalidDefinitionError(
            f"{body.__name__} has no parameter 'batch': @pgque_asset passes it the SparkBatch"
        )

    def consume(
        context: dg.AssetExecutionContext, pgque: PgqueResource, pyspark: Any, **others: Any
    ) -> Iterator[Any]:
        def call(batch: SparkBatch) -> Any:
            offered = {"context": context, "pgque": pgque, "pyspark": pyspark, "batch": batch}
            return body(**others, **{key: offered[key] for key in offered if key in wanted})

        yield from _consume(context, pgque, pyspark, consumption, call)

    parameters = {
        "context": dg.AssetExecutionContext,
        "pgque": PgqueResource,
        "pyspark": dg.ResourceParam[Any],  # type: ignore[misc]
    }
    inputs = [key for key in wanted if key not in {*parameters, "batch"}]
    consume.__name__ = body.__name__
    consume.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            *(
                inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
                for key, kind in parameters.items()
            ),
            *(wanted[key] for key in inputs),
        ]
    )
    annotations = body.__annotations__
    consume.__annotations__ = {
        **{key: annotations[key] for key in inputs if key in annotations},
        **parameters,
    }
    return consume


def _consume(
    context: dg.AssetExecutionContext,
    pgque: PgqueResource,
    pyspark: Any,
    consumption: _Consumption,
    call: Callable[[SparkBatch], Any],
) -> Iterator[Any]:
    with pgque.client() as client:
        pgque.ensure_consumer(client, consumption.queue, consumption.consumer)
        batch = _claim(context, client, consumption)
        if batch is None:
            return
        # GeneratorExit, too, must release: Dagster raises it when storing the output failed.
        try:
            with batch.kept() as keeper:
                spark_batch = SparkBatch(
                    open_session(pyspark), batch, client.url, slices=consumption.slices
                )
                yield from _work(context, consumption, batch, spark_batch, keeper, call)
        except BaseException:
            with suppress(PgqueError):
                batch.release()
            raise


def _work(
    context: dg.AssetExecutionContext,
    consumption: _Consumption,
    batch: Batch,
    spark_batch: SparkBatch,
    keeper: LeaseKeeper,
    call: Callable[[SparkBatch], Any],
) -> Iterator[Any]:
    blocked: list[str] = []
    try:
        context.add_output_metadata(_metadata(batch, spark_batch), output_name=_OUTPUT)
        for event in _events(call(spark_batch)):
            blocked += _failed_blocking_checks(event, consumption.blocking_checks)
            yield event
    finally:
        spark_batch.close()

    if blocked:
        context.log.error(f"Batch {batch.batch_id} is not acked: {', '.join(blocked)} failed.")
        batch.release()
        return
    keeper.check()
    result = batch.ack()
    context.log.info(
        f"Acked batch {batch.batch_id} of {batch.queue}/{batch.consumer}: "
        f"{result.nacked} events to be delivered again, {result.dead_lettered} dead letters."
    )
    if result.dead_lettered:
        context.log_event(
            dg.AssetObservation(
                dead_letters_key(batch.queue),
                metadata={
                    "dead_lettered": result.dead_lettered,
                    "consumer": batch.consumer,
                    "batch_id": batch.batch_id,
                },
            )
        )


def _claim(
    context: dg.AssetExecutionContext, client: Client, consumption: _Consumption
) -> Batch | None:
    """Claims the run's batch, or the next one with events; None, with the reason logged, if not."""
    tag = context.run.tags.get(BATCH_ID)
    name = f"{consumption.queue}/{consumption.consumer}"
    while True:
        try:
            batch = client.claim(
                consumption.queue,
                consumption.consumer,
                owner=f"dagster run {context.run.run_id}",
                ttl=consumption.lease_ttl,
                limits=_BY_HAND,
                batch_id=int(tag) if tag else None,
            )
        except (BatchLeased, BatchNotOpen) as error:
            context.log.warning(f"Skipped: {error}")
            return None
        if batch is None:
            context.log.info(f"Skipped: {name} has no batch yet.")
            return None
        if tag or batch.read_plan(1).events:
            return batch
        batch.ack()


def _metadata(batch: Batch, spark_batch: SparkBatch) -> dict[str, Any]:
    return {
        QUEUE: batch.queue,
        CONSUMER: batch.consumer,
        BATCH_ID: batch.batch_id,
        "pgque/prev_tick_id": batch.lease.prev_tick_id,
        "pgque/tick_id": batch.lease.tick_id,
        "pgque/epoch": batch.lease.epoch,
        "pgque/events": spark_batch.event_count,
    }


def _events(returned: Any) -> Iterator[Any]:
    """Turns what a body returned or yielded into Dagster's events."""
    for result in returned if inspect.isgenerator(returned) else (returned,):
        if isinstance(result, dg.AssetCheckResult | dg.MaterializeResult | dg.Output):
            yield result
        elif result is None:
            yield dg.MaterializeResult()
        else:
            yield dg.Output(result)


def _failed_blocking_checks(event: Any, blocking: frozenset[str]) -> list[str]:
    if isinstance(event, dg.AssetCheckResult):
        results: Sequence[dg.AssetCheckResult] = [event]
    elif isinstance(event, dg.MaterializeResult):
        results = event.check_results or []
    else:
        results = []
    # A result without a name belongs to the only check there is.
    return [
        result.check_name or next(iter(blocking))
        for result in results
        if not result.passed
        and result.severity == dg.AssetCheckSeverity.ERROR
        and (result.check_name in blocking or (result.check_name is None and len(blocking) == 1))
    ]

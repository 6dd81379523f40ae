"""How a step consumes a batch: claim, compute, store, check, ack, in this order.

The guarantee that each event counts once depends on this order. Dagster resumes a generator after
`yield Output` once the IO manager has stored the output, so the ack follows the yield. If the
function or the IO manager raises, the ack is never reached.

Time windows, and batches or windows of several databases, take the same steps. A window is not
acked, so it is stored as a whole or not at all.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import dagster as dg

from .. import spark
from ..client import Batch, InvalidArgument
from ..client.sharded_claim import ShardedClaim
from ..project.resource import PgqueResource
from ..spark.address import DatabaseAddress
from ..spark.cluster.executor_errors import clear_executor_errors
from ..spark.cluster.session import open_session
from .claims import Claims
from .consumption import Consumption
from .current_batch import working_on
from .metadata import batch_metadata
from .outputs import Outputs, StepResult, outputs_are_checked


def consume(
    consumption: Consumption,
    claim: Callable[..., Claims],
    context: dg.AssetExecutionContext,
    resources: Mapping[str, PgqueResource],
    pyspark: Any,
    call: "Callable[[spark.SparkBatch], Any]",
) -> Iterator[StepResult]:
    """Consumes the batch or window of a run in a step. Without one, it skips the assets.

    Args:
        consumption: what is consumed.
        claim: `claim_batches` or `open_windows`.
        context: the step's context.
        resources: the databases, by name.
        pyspark: the resource that has the Spark session.
        call: the compute function; it only takes the batch, because its other arguments are bound.

    Raises:
        PgqueError: as for `claim`; with several databases, only if none of them has a batch.
        LeaseLost: if another owner took over the batch.
    """
    with ExitStack() as stack:
        claims, is_any_stored = claim(consumption, context, resources, stack), False
        if claims.sink and claims.found:
            is_any_stored = yield from claims.ack_stored()
        if not claims.found:
            if claims.errors and not is_any_stored:
                raise claims.errors[0]
            yield from _skip(context)
            return
        batch = _spark_batch(consumption, pyspark, resources, claims)
        outputs = yield from _compute(context, consumption, batch, call)
        failed = outputs.failed_checks()
        if batch.claim.is_window:
            return
        vector = batch.claim.batch_id if batch.claim.is_final else None
        if vector is not None and not batch.claim.is_stored:
            raise InvalidArgument(
                "the batches of several shards were not stored by the IO manager",
                "Return a DataFrame.",
            )
        if failed and vector is None:
            # Dagster itself fails the step because of these checks.
            name = f"batch {batch.batch_id} of {consumption}"
            context.log.error(f"{name} is not acked: {', '.join(failed)} failed")
            return
        for database, member in claims.found.items():
            assert isinstance(member, Batch) and member.keeper is not None
            if vector is None:
                member.keeper.check()
            of = str(consumption) if vector is None else f"shard {database}"
            claims.ack(member, of, vector)


def _spark_batch(
    consumption: Consumption,
    pyspark: Any,
    resources: Mapping[str, PgqueResource],
    claims: Claims,
) -> "spark.SparkBatch":
    """Returns the claims of a step as one batch for Spark."""
    session = open_session(pyspark)
    batches = {
        name: spark.SparkBatch(
            session,
            claim,
            claim.session.url,
            slices=consumption.slices,
            address=executors_address(resources[name], claim.session.url),
        )
        for name, claim in claims.found.items()
    }
    if consumption.shards:
        return spark.ShardedBatch(ShardedClaim(claims.found), batches)
    (batch,) = batches.values()
    return batch


def _compute(
    context: dg.AssetExecutionContext,
    consumption: Consumption,
    batch: "spark.SparkBatch",
    call: "Callable[[spark.SparkBatch], Any]",
) -> Generator[StepResult, None, Outputs]:
    """Computes a batch and lets Dagster store its outputs."""
    metadata = batch_metadata(batch)
    version = dg.DataVersion(batch.claim.version)
    batch.settles_late = outputs_are_checked(context, consumption)
    outputs = Outputs(context, consumption)
    try:
        with (
            clear_executor_errors(),
            working_on(context.run.run_id, outputs.keys.values(), batch),
        ):
            for event in outputs.events(call(batch)):
                yield outputs.with_metadata(event, metadata() | consumption.database.tags, version)
            # Before `close` drops the reports of tasks.
            batch.claim.run_checks()
    finally:
        batch.close()
    return outputs


def _skip(context: dg.AssetExecutionContext) -> Iterator[StepResult]:
    """Skips the assets. Yields the outputs of their checks, because Dagster requires them."""
    assets = context.assets_def
    for spec in assets.check_specs:
        name = assets.get_output_name_for_asset_check_key(spec.key)
        yield dg.Output(None, output_name=name)


def executors_address(pgque: PgqueResource, url: str) -> DatabaseAddress:
    """Returns how Spark's executors reach the database; the driver reaches it at `url`."""
    named = DatabaseAddress(url_env=pgque.executors_url_env, url_file=pgque.executors_url_file)
    return named if named.options() else DatabaseAddress(url)

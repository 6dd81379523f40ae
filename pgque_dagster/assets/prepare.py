"""What a step does before it claims a batch: the consumer, and a warning about late checks."""

import dagster as dg

from ..client import Client, ConsumerNotFound, QueueNotFound
from ..client.registrations import enter_deployment
from ..project.batch_run import BatchRun
from ..project.consumers import repository_of
from ..project.deployment import consuming_asset
from ..project.registration import ensure_consumer, how_to_register_again
from ..project.resource import PgqueResource
from .consumption import Consumption


def prepare_consumer(
    consumption: Consumption,
    context: dg.AssetExecutionContext,
    pgque: PgqueResource,
    client: Client,
) -> None:
    """Checks or registers the consumer before a run claims a batch. Raises as `claim_batches`."""
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


def warn_of_late_checks(context: dg.AssetExecutionContext) -> None:
    """Warns about blocking checks that other definitions have on the step's assets.

    Dagster runs these after the step, and so after the ack.
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


def _find_consumer(
    context: dg.AssetExecutionContext, client: Client, consumption: Consumption
) -> None:
    """Registers a new consumer for a manual run. A run for a batch requires the consumer."""
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
                f"{consumption} no longer has slot {run.holder.slot}, for whose batch "
                f"{run.batch_id} this run waited",
                "If the number of slots was changed, the sensor requests runs for the new ones.",
            ) from error
        raise ConsumerNotFound(
            f"consumer {consumption} was removed while its batch {run.batch_id} waited for this "
            "run",
            how_to_register_again(consumption.queue, consumption.consumer, consumption.database),
        ) from error

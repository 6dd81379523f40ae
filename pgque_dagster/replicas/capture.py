"""The sensor that captures the tables of replicas into their queue."""

from collections.abc import Sequence

import dagster as dg

from ..client import PgqueError
from ..client.registrations import enter_deployment
from ..client.replicas.capture import capture_new, check_way, uncapture_left
from ..client.replicas.spec import TableSpec
from ..client.replicas.standing import request_first_copies
from ..client.replicas.status import name_replicas
from ..project.database import Database
from ..project.deployment import consuming_asset
from ..project.registration import capture_sensor_name, ensure_consumer, ensure_queue
from ..project.resource import PgqueResource, takes_resource
from .names import Target

_CAPTURE_SECONDS = 30


def capture_sensor(
    database: Database,
    name: str,
    queue: str,
    tables: Sequence[TableSpec],
    target: Target,
    status: dg.DefaultSensorStatus,
    replicas: dg.AssetsDefinition,
    way: str,
) -> dg.SensorDefinition:
    """Returns the sensor that captures the tables by `triggers` or `wal`, for the replicas."""
    names = ", ".join(table.source for table in tables)

    @dg.sensor(
        name=capture_sensor_name(name, database),
        minimum_interval_seconds=_CAPTURE_SECONDS,
        default_status=status,
        description=f"Captures {names} into the queue {queue}, once for each table.",
    )
    @takes_resource(database)
    def sensor(context: dg.SensorEvaluationContext, pgque: PgqueResource) -> dg.SkipReason:
        try:
            with pgque.client() as client:
                ensure_queue(client, queue, {})
                check_way(client, queue, way)
                # Before the first event, which the consumer would otherwise miss.
                ensure_consumer(client, queue, name)
                # So that a copy of the project captures no tables for replicas of another project.
                deployment = pgque.deployment_of(context.instance)
                asset = consuming_asset(context, deployment, replicas.keys)
                client.run(enter_deployment(queue, name, asset))
                # Before the first change, so that another consumer skips the table's changes.
                client.run(name_replicas(queue, name, [table.source for table in tables]))
                is_new = capture_new(client, queue, tables, target.check)
                requested = request_first_copies(client, queue, name, is_new)
                left = uncapture_left(client, queue, name)
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        if left:
            return dg.SkipReason(f"ended the capture of {', '.join(left)}, which was removed")
        if added := [table for table in is_new if is_new[table]]:
            return dg.SkipReason(f"captured {', '.join(added)}; the next batch copies them")
        if requested:
            return dg.SkipReason(f"the next batch copies {', '.join(requested)}")
        return dg.SkipReason(f"all tables are captured: {names}")

    return sensor

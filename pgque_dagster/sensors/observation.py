"""`build_pgque_observation_sensor`: records the figures that the asset pages of queues show."""

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

from ..client import PgqueError
from ..client.ranges import duration_problem
from ..project.consumers import consumers_of_location
from ..project.database import DEFAULT, Database
from ..project.keys import switching_on
from ..project.queue_report import report_queues
from ..project.resource import PgqueResource, takes_resource


def build_pgque_observation_sensor(
    queues: Sequence[str],
    *,
    database: str = DEFAULT,
    name: str | None = None,
    interval: timedelta = timedelta(minutes=5),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Builds the sensor that observes each queue and its dead letters once per interval.

    The asset's page plots the numbers in the metadata: depth, events per second, the lag of the
    slowest consumer in seconds, and dead letters. Tables list each consumer with its asset and its
    lag, and problems with their solutions.

    Args:
        queues: the queues' names.
        database: the key of the PgqueResource whose database has the queues.
        name: the sensor's name; by default `pgque_observation_sensor`, with the database in front.
        interval: the time between two observations of a queue. Each observation stays in Dagster's
            event log forever.
        default_status: RUNNING, or STOPPED until somebody switches the sensor on in the UI.

    Returns:
        The sensor. It needs the resource of the database.

    Raises:
        DagsterInvalidDefinitionError: if there is no queue, or the interval is not positive.
    """
    of = Database(database)
    name = name or of.named("pgque_observation_sensor")
    if not queues:
        raise dg.DagsterInvalidDefinitionError(
            f"sensor {name} has no queue to observe: pass at least one"
        )
    problem = duration_problem("interval", interval, positive=True)
    if problem is not None:
        raise dg.DagsterInvalidDefinitionError(f"sensor {name}: {problem}")

    @dg.sensor(
        name=name,
        minimum_interval_seconds=max(1, int(interval.total_seconds())),
        default_status=default_status,
        description=(
            f"Records depth, rate, lag and dead letters for each of {', '.join(queues)} every "
            f"{interval}, and who consumes, what is held and what to do, as observations of the "
            "queue and of its dead letters. It only reads. While it is off, their pages show old "
            f"numbers and the plots have a gap.{switching_on(default_status)}"
        ),
    )
    @takes_resource(of)
    def pgque_observation_sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            with pgque.client() as client:
                reports = report_queues(client, queues, consumers_of_location(context), of)
        except PgqueError as error:
            return dg.SkipReason(f"the queues are not observed: {error}")
        for queue in queues:
            if of.queue_key(queue) not in reports:
                context.log.warning(f"queue {queue} is not observed: it does not exist")
        return dg.SensorResult(
            asset_events=[dg.AssetObservation(key, metadata=reports[key]) for key in reports]
        )

    return pgque_observation_sensor

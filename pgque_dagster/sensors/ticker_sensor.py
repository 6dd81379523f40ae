"""`build_pgque_ticker_sensor`: ticks and maintenance without pg_cron or `pgque ticker`."""

import dagster as dg

from ..client import PgqueError
from ..project.database import DEFAULT, Database
from ..project.keys import switching_on
from ..project.resource import PgqueResource, takes_resource


def build_pgque_ticker_sensor(
    *,
    database: str = DEFAULT,
    name: str | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Builds the sensor that ticks and maintains all queues, if `ticking` is `sensor`.

    Batch sensors tick, too, while they wait. While the daemon is down, events wait for a tick.
    If the resource's `ticking` has another value, the sensor does nothing.

    Args:
        database: the key of the PgqueResource whose queues are ticked.
        name: the sensor's name; by default `pgque_ticker_sensor`, with the database in front.
        default_status: RUNNING, or STOPPED until somebody switches the sensor on in the UI.

    Returns:
        The sensor. It needs the resource of the database, with a role that has pgque_admin.
    """
    of = Database(database)

    @dg.sensor(
        name=name or of.named("pgque_ticker_sensor"),
        # A daemon that starts one every 5 seconds misses one that is due in a millisecond.
        minimum_interval_seconds=4,
        default_status=default_status,
        description=(
            "Ticks all queues every 5 s, so that the events sent since then can be consumed, and "
            "maintains them. It acts only if "
            f"`ticking` of the resource {database} is sensor. While it is off, no event reaches a "
            "consumer, unless pg_cron or `pgque ticker` ticks; events wait in their queue."
            f"{switching_on(default_status)}"
        ),
    )
    @takes_resource(of)
    def pgque_ticker_sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.SkipReason:
        if pgque.ticking != "sensor":
            return dg.SkipReason(
                f"this sensor does not tick: ticking is {pgque.ticking}. To let it tick, set "
                f"ticking=sensor of the resource {database}; otherwise switch it off"
            )
        try:
            with pgque.client() as client:
                ticked = client.ticker()
                # Maintenance reinserts due retries; the next evaluation makes their tick.
                done = client.maint()
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        return dg.SkipReason(
            f"queues ticked: {ticked}; maintenance operations done: {done}. A tick is made only "
            "where events wait, or when the last one is too old"
        )

    return pgque_ticker_sensor

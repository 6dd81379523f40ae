"""`build_pgque_ticker_sensor`: ticks and maintenance without pg_cron or `pgque ticker`."""

import dagster as dg

from ..client import PgqueError
from ..project.keys import SWITCHING_ON
from ..project.resource import PgqueResource


def build_pgque_ticker_sensor(
    *,
    name: str = "pgque_ticker_sensor",
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Builds the sensor that ticks and maintains all queues, if `ticking` is `sensor`.

    The sensors of batches tick, too, while they wait. Events wait for a tick as long as the daemon
    is down. If the resource's `ticking` has another value, the sensor does nothing.

    Args:
        name: the sensor's name.
        default_status: RUNNING, or STOPPED until somebody switches the sensor on in the UI.

    Returns:
        The sensor. It needs the resource `pgque`, with a role that has pgque_admin.
    """

    @dg.sensor(
        name=name,
        # The daemon, which starts one every 5 seconds, passes by one that is due in a millisecond.
        minimum_interval_seconds=1,
        default_status=default_status,
        description=(
            "Ticks all queues every 5 s, so that the events sent since then can be consumed, and "
            "maintains them. It acts only if "
            "`ticking` of the resource pgque is sensor. While it is off, no event reaches a "
            "consumer, unless pg_cron or `pgque ticker` ticks; events wait in their queue. "
            f"{SWITCHING_ON}"
        ),
    )
    def pgque_ticker_sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.SkipReason:
        if pgque.ticking != "sensor":
            return dg.SkipReason(
                f"this sensor does not tick: ticking is {pgque.ticking}. To let it tick, set "
                "ticking=sensor of the resource pgque; otherwise switch it off"
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

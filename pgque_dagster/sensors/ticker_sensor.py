"""`build_pgque_ticker_sensor`: ticks and maintenance, where nothing but Dagster runs."""

import dagster as dg

from ..client import PgqueError
from ..resource import PgqueResource


def build_pgque_ticker_sensor(
    *,
    name: str = "pgque_ticker_sensor",
    minimum_interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Makes the sensor that ticks all queues and maintains them, where the policy is `sensor`.

    Events wait for a tick, so they wait up to one interval more than with pg_cron or
    `pgque ticker`, and as long as the daemon is down. Where the resource's `ticking` is another,
    the sensor does nothing.

    Args:
        name: the sensor's name.
        minimum_interval_seconds: between two evaluations, and so between two ticks.
        default_status: whether the sensor runs without being switched on.

    Returns:
        The sensor. It needs the resource `pgque`, with a role that has pgque_admin.
    """

    @dg.sensor(
        name=name,
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Ticks all queues and maintains them.",
    )
    def pgque_ticker_sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.SkipReason:
        if pgque.ticking != "sensor":
            return dg.SkipReason(f"ticking is left to others: the policy is {pgque.ticking}")
        try:
            with pgque.client() as client:
                ticked = client.ticker()
                # What is delivered again needs a tick, which the next evaluation makes.
                done = client.maint()
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        return dg.SkipReason(f"queues ticked: {ticked}; maintenance did {done} things")

    return pgque_ticker_sensor

"""`build_pgque_observation_sensor`: records each queue's numbers, which Dagster plots over time."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

import dagster as dg

from ..client import Client, ConsumerInfo, PgqueError, QueueStats
from ..keys import QUEUE, queue_key
from ..ranges import duration_problem
from ..resource import PgqueResource

_VERSION = 1

# If the database cannot be reached, the sensor retries after this time, not after `interval`.
_LONGEST_PAUSE = timedelta(seconds=30)


@dataclass(frozen=True)
class ObservationCursor:
    """When the sensor last observed the queues; None if it never did."""

    observed_at: datetime | None = None

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `write` returned; any other text gives an empty cursor."""
        try:
            fields = json.loads(text or "null")
            if fields["version"] != _VERSION:
                return cls()
            observed_at = datetime.fromisoformat(fields["observed_at"])
        except (ValueError, TypeError, KeyError):
            return cls()
        return cls(observed_at.replace(tzinfo=observed_at.tzinfo or UTC))

    def write(self) -> str:
        """Returns the cursor as text, with the version of its format."""
        observed_at = self.observed_at and self.observed_at.isoformat()
        return json.dumps({"version": _VERSION, "observed_at": observed_at})

    def next_at(self, interval: timedelta, now: datetime) -> datetime:
        """Returns when the next observation is due. Ignores a last observation in the future."""
        if self.observed_at is None or self.observed_at > now:
            return now
        return self.observed_at + interval


def build_pgque_observation_sensor(
    queues: Sequence[str],
    *,
    name: str = "pgque_observation_sensor",
    interval: timedelta = timedelta(minutes=5),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Builds the sensor that records one AssetObservation of each queue in each interval.

    The metadata are numbers, so that the page of the queue's asset plots them: depth, events per
    second, dead letters, consumers, and in seconds the lag of the slowest consumer and of each, and
    the ages of the oldest waiting event, the last tick and the last rotation.

    Args:
        queues: the queues' names.
        name: the sensor's name.
        interval: the time between two observations of a queue. Each observation stays in Dagster's
            event log for ever.
        default_status: RUNNING, or STOPPED until somebody switches the sensor on in the UI.

    Returns:
        The sensor. It needs the resource `pgque`.

    Raises:
        DagsterInvalidDefinitionError: if there is no queue, or the interval is not positive.
    """
    if not queues:
        raise dg.DagsterInvalidDefinitionError(
            f"sensor {name} has no queue to observe: pass at least one"
        )
    problem = duration_problem("interval", interval, positive=True)
    if problem is not None:
        raise dg.DagsterInvalidDefinitionError(f"sensor {name}: {problem}")

    @dg.sensor(
        name=name,
        minimum_interval_seconds=max(1, int(min(interval, _LONGEST_PAUSE).total_seconds())),
        default_status=default_status,
        description=f"Observes {', '.join(queues)} every {interval}.",
    )
    def pgque_observation_sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.SensorResult | dg.SkipReason:
        now = datetime.now(UTC)
        due = ObservationCursor.read(context.cursor).next_at(interval, now)
        if now < due:
            return dg.SkipReason(f"the next observation is due at {due:%H:%M:%S} UTC")
        try:
            with pgque.client() as client:
                observations = _observe(client, queues, now)
        except PgqueError as error:
            return dg.SkipReason(str(error))
        observed = {str(observation.metadata[QUEUE].value) for observation in observations}
        for queue in queues:
            if queue not in observed:
                context.log.warning(f"queue {queue} is not observed: it does not exist")
        return dg.SensorResult(
            asset_events=observations, cursor=ObservationCursor(observed_at=now).write()
        )

    return pgque_observation_sensor


def consumer_lag(info: ConsumerInfo) -> timedelta:
    """Returns how far a consumer is behind; 0 if no event waits for it.

    An open batch counts as waiting, because retried events are not among the pending ones. Events
    that wait for a tick count too: on a paused queue, they wait until it is resumed.
    """
    if info.lag is None:
        return timedelta(0)
    if info.pending_events or info.batch_id is not None:
        return info.lag
    return info.unticked_age or timedelta(0)


def _observe(client: Client, queues: Sequence[str], now: datetime) -> list[dg.AssetObservation]:
    consumers = client.consumers()
    return [
        _observation(stats, [each for each in consumers if each.queue == stats.queue], now)
        for stats in client.queue_stats()
        if stats.queue in queues
    ]


def _observation(
    stats: QueueStats, consumers: Iterable[ConsumerInfo], now: datetime
) -> dg.AssetObservation:
    lags = {consumer.name: consumer_lag(consumer) for consumer in consumers}
    tick_age = max(now - stats.last_tick_time, timedelta(0)) if stats.last_tick_time else None
    return dg.AssetObservation(
        queue_key(stats.queue),
        metadata={
            QUEUE: stats.queue,
            "pgque/depth": stats.depth,
            "pgque/events_per_second": stats.events_per_second,
            "pgque/dead_letters": stats.dead_letters,
            "pgque/consumers": stats.consumers,
            "pgque/oldest_event_seconds": _seconds(stats.oldest_message_age),
            "pgque/last_tick_age_seconds": _seconds(tick_age),
            "pgque/rotation_age_seconds": _seconds(stats.rotation_age),
            "pgque/lag_seconds": _seconds(max(lags.values(), default=None)),
            **{f"pgque/lag_seconds/{name}": _seconds(lag) for name, lag in lags.items()},
        },
    )


def _seconds(time: timedelta | None) -> float:
    """Returns seconds, 0.0 for None, so that the plots have no gaps."""
    return 0.0 if time is None else time.total_seconds()

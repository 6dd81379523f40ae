"""`build_pgque_observation_sensor`: how each queue is, as numbers that Dagster plots over time."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Self

import dagster as dg

from ..client import Client, ConsumerInfo, PgqueError, QueueStats
from ..keys import QUEUE, queue_key
from ..resource import PgqueResource

_VERSION = 1

# Where the database could not be asked, the sensor asks again after so long, not after `interval`.
_LONGEST_PAUSE = timedelta(seconds=30)


@dataclass(frozen=True)
class ObservationCursor:
    """What the sensor remembers: when it observed the queues last; None if it never did."""

    observed_at: datetime | None = None

    @classmethod
    def read(cls, text: str | None) -> Self:
        """Reads what `write` wrote; anything else is a cursor that knows nothing."""
        try:
            fields = json.loads(text or "null")
            if fields["version"] != _VERSION:
                return cls()
            observed_at = datetime.fromisoformat(fields["observed_at"])
        except (ValueError, TypeError, KeyError):
            return cls()
        return cls(observed_at.replace(tzinfo=observed_at.tzinfo or UTC))

    def write(self) -> str:
        """Returns the cursor as text, with the version of its form."""
        observed_at = self.observed_at and self.observed_at.isoformat()
        return json.dumps({"version": _VERSION, "observed_at": observed_at})

    def next_at(self, interval: timedelta, now: datetime) -> datetime:
        """Returns when the next observation is due; a time in the future counts as none."""
        if self.observed_at is None or self.observed_at > now:
            return now
        return self.observed_at + interval


def build_pgque_observation_sensor(
    queues: Sequence[str],
    *,
    name: str = "pgque_observation_sensor",
    interval: timedelta = timedelta(minutes=5),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Makes the sensor that observes queues: one AssetObservation a queue and interval.

    Its metadata are numbers, so that the page of the queue's asset plots them: depth, events a
    second, dead letters, consumers, and in seconds the lag of the slowest consumer and of each, the
    age of the oldest waiting event, of the last tick and of the last rotation.

    Args:
        queues: the queues' names.
        name: the sensor's name.
        interval: between two observations of a queue. Each is a row in Dagster's event log for
            ever.
        default_status: whether the sensor runs without being switched on.

    Returns:
        The sensor. It needs the resource `pgque`.

    Raises:
        DagsterInvalidDefinitionError: if there is no queue, or the interval is not positive.
    """
    if not queues:
        raise dg.DagsterInvalidDefinitionError(f"sensor {name} has no queue to observe: name some")
    if interval <= timedelta(0):
        raise dg.DagsterInvalidDefinitionError(
            f"sensor {name} cannot observe every {interval}: give a positive interval"
        )

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
    """Returns how far a consumer is behind; no time at all where no event waits for it.

    Events that are delivered again are not among those that are pending, but in an open batch.
    """
    waits = info.pending_events or info.batch_id is not None
    return info.lag if info.lag is not None and waits else timedelta(0)


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
    """A float in each observation, so that the plot has no gaps where nothing waits."""
    return 0.0 if time is None else time.total_seconds()

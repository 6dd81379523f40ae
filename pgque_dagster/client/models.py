"""The values that the client takes and returns."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from .encoding import Payload, decode_bytes
from .errors import MalformedPayload
from .ranges import check_interval


# Not frozen: creating frozen objects takes five times as long.
@dataclass(slots=True, unsafe_hash=True)
class Message:
    """An event as a consumer sees it: the columns of SQL type `pgque.message` without the batch.

    Attributes:
        msg_id: the event's id, unique in its queue.
        created_at: when the event was sent: the start of the sender's transaction.
        retry_count: how often it was delivered before; None for the first delivery.
    """

    msg_id: int
    type: str | None
    payload: str | None
    retry_count: int | None
    created_at: datetime
    extra1: str | None = None
    extra2: str | None = None
    extra3: str | None = None
    extra4: str | None = None

    @property
    def key(self) -> str | None:
        """The partition key; None if the event has none."""
        return self.extra1

    def json(self) -> Any:
        """Parses the payload as JSON.

        Raises:
            MalformedPayload: if it is not JSON.
        """
        try:
            return json.loads(self.payload or "")
        except ValueError as error:
            raise MalformedPayload(
                f"the payload of event {self.msg_id} is not JSON: {error}",
                "Read it as text from `payload`, or dead-letter the event.",
            ) from error

    def as_bytes(self) -> bytes:
        """Returns the bytes of a payload that was sent as bytes.

        Raises:
            MalformedPayload: if it was not.
        """
        content = decode_bytes(self.payload or "")
        if content is None:
            raise MalformedPayload(
                f"the payload of event {self.msg_id} was not sent as bytes",
                "Read it as text from `payload`.",
            )
        return content


@dataclass(frozen=True)
class ConsumingAsset:
    """The assets to which a consumer belongs, sorted. Empty and None fields are unknown."""

    deployment: str | None = None
    location: str | None = None
    assets: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = (self.deployment, "deployment"), (self.location, "location")
        parts = [f"{what} {name}" for name, what in named if name is not None]
        return ", ".join([*parts, *(f"asset {key}" for key in self.assets)])


@dataclass(frozen=True)
class Event:
    """An event for `send_batch` and `copy_events`, with its own type and key.

    Attributes:
        type: the event's type; None for the type of the batch.
        key: partitioned consumers handle events with the same key in order.
    """

    payload: Payload
    type: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class Sent:
    """The result of sending with an idempotency key.

    Attributes:
        event_id: the id of the event that has the key.
        deduped: whether the event had been sent before, so that nothing was sent now.
    """

    event_id: int
    deduped: bool


@dataclass(frozen=True)
class Sought:
    """Where `seek` moved a consumer.

    Attributes:
        tick_id: the tick at which the consumer now stands.
        skipped_events: how many events it skipped and will never get.
        repeated_events: how many events it will get again.
    """

    tick_id: int
    skipped_events: int
    repeated_events: int


@dataclass(frozen=True)
class ScheduledEvent:
    """A scheduled event. `id` is the entry id for `cancel_scheduled`, not an event id."""

    id: int
    deliver_at: datetime
    type: str | None
    payload: str | None


@dataclass(frozen=True)
class Limits:
    """Limits of the next batch; None means no limit.

    The batch ends at the nearest tick that is older than `min_lag` and gives the batch `min_count`
    events or a length of `min_interval`. With `max_count`, it ends at the last tick that keeps it
    within that many events, and `min_interval` only has to have passed since it began.
    """

    min_lag: timedelta | None = None
    min_count: int | None = None
    min_interval: timedelta | None = None
    max_count: int | None = None

    def __post_init__(self) -> None:
        """Checks the lengths of time.

        Raises:
            InvalidArgument: if one is not a timedelta, or is negative.
        """
        for name in ("min_lag", "min_interval"):
            value = getattr(self, name)
            if value is not None:
                check_interval(name, value, is_zero_allowed=True)


@dataclass(frozen=True)
class Lease:
    """A claim on an open batch. Every claim raises the epoch, so an older lease is refused."""

    batch_id: int
    owner: str
    epoch: int
    until: datetime
    prev_tick_id: int
    tick_id: int


@dataclass(frozen=True)
class LeaseInfo:
    """Who has, or last had, the lease on a consumer's open batch."""

    batch_id: int
    owner: str | None
    until: datetime | None
    epoch: int
    is_live: bool


@dataclass(frozen=True)
class BatchInfo:
    """What an open batch spans. `seq_start` and `seq_end` are the last event ids at its ticks."""

    queue: str
    consumer: str
    start: datetime
    end: datetime
    prev_tick_id: int
    tick_id: int
    lag: timedelta
    seq_start: int
    seq_end: int


@dataclass(frozen=True)
class SetAside:
    """What `set_events_aside` did.

    Attributes:
        batch_id: the batch.
        dead_lettered: how many of its events became dead letters.
        is_empty: whether the batch has no other events.
    """

    batch_id: int
    dead_lettered: int
    is_empty: bool


@dataclass(frozen=True)
class History:
    """How a consumer handled events before an open batch.

    Attributes:
        finished: how many events it finished, up to the requested number.
        failed: how many of its newest events, up to that number, are dead letters or wait for a
            retry.
    """

    finished: int
    failed: int


@dataclass(frozen=True)
class Slice:
    """A part of a batch that can be read on its own.

    Attributes:
        sql: the statement that returns its events with all columns.
        rows: the FROM clause of that statement, for readers that choose their columns.
        set_columns: which of ev_retry and ev_extra1 to ev_extra4 have a value in some event.
    """

    sql: str
    rows: str
    set_columns: tuple[str, ...]


@dataclass(frozen=True)
class ReadPlan:
    """The slices of a batch, and what all its events have in common.

    Attributes:
        slices: none if the batch is empty.
        events: how many events it has.
        payload_bytes: the bytes of the payloads.
        bytes: the bytes of the payloads, the types and the extras.
        oldest: the time of the oldest event; None without events.
        newest: the time of the newest event; None without events.
    """

    slices: tuple[Slice, ...] = ()
    events: int = 0
    payload_bytes: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None


@dataclass(frozen=True)
class ConsumerInfo:
    """A consumer's state. `pending_events` is an upper bound for the events up to the last tick.

    A subconsumer without a batch has no position: lag, last tick and pending events are None.

    Attributes:
        lag: how long its first unfinished event has waited; zero if none waits.
        unticked_events: an upper bound for the events of the queue that are in no tick yet.
        unticked_age: how long the first of these has waited for a tick; None if there is none.
        waiting_events: an upper bound for the events that wait, with or without a tick.
    """

    queue: str
    name: str
    lag: timedelta | None
    last_seen: timedelta
    last_tick_id: int | None
    batch_id: int | None
    pending_events: int | None
    unticked_events: int
    unticked_age: timedelta | None
    waiting_events: int | None


@dataclass(frozen=True)
class QueueStats:
    """The key figures of a queue.

    Attributes:
        depth: events that the slowest consumer has not finished, including events without a tick.
        oldest_message_age: the age of the oldest such event; None if there is none.
        events_per_second: the rate between the last two ticks.
        rotation_age: the time since the last rotation.
        last_tick_time: None if the queue has no ticks.
    """

    queue: str
    depth: int
    oldest_message_age: timedelta | None
    consumers: int
    events_per_second: float
    rotation_age: timedelta
    ticker_paused: bool
    last_tick_time: datetime | None
    dead_letters: int


@dataclass(frozen=True)
class HealthCheck:
    """The result of a health check.

    Attributes:
        queue: None for a check of the database.
        check: the check's name, such as `ticker_running` or `consumer_lag:billing`.
        status: ok, warning or critical.
        detail: the finding and, if something is wrong, what to do.
    """

    queue: str | None
    check: str
    status: Literal["ok", "warning", "critical"]
    detail: str


@dataclass(frozen=True)
class Metric:
    """One sample of a metric. A counter never decreases while its labels exist."""

    name: str
    type: Literal["gauge", "counter"]
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True)
class DeadLetterCount:
    """The number of dead letters of a consumer with one reason, and the time of the oldest."""

    consumer: str
    reason: str | None
    count: int
    oldest: datetime


@dataclass(frozen=True)
class DeadLetter:
    """An event that a consumer dead-lettered."""

    id: int
    time: datetime
    reason: str | None
    event_id: int
    retry_count: int | None
    type: str | None
    payload: str | None


@dataclass(frozen=True)
class Status:
    """The state of one component: `ok` or the problem, with details."""

    component: str
    status: str
    detail: str

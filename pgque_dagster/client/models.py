"""The plain values that the client takes and returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal


@dataclass(frozen=True)
class Message:
    """An event as a consumer sees it: the columns of the SQL type `pgque.message`, less the batch.

    Attributes:
        msg_id: the event's id, unique in its queue.
        created_at: when the event was sent (start of the sender's transaction).
        retry_count: how often it was delivered before; None at the first time.
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


@dataclass(frozen=True)
class Sent:
    """What sending under a key came to: the event, and whether it had been sent before."""

    event_id: int
    deduped: bool


# Ids of scheduled events begin here, and those of events sent do not reach it.
FIRST_ENTRY_ID = 2**52


@dataclass(frozen=True)
class ScheduledEvent:
    """An event that waits for its time. `id` is the entry's, for cancelling; no event has it."""

    id: int
    deliver_at: datetime
    type: str | None
    payload: str | None


@dataclass(frozen=True)
class Limits:
    """Which next batch a consumer wants; None leaves a limit out.

    The batch ends at the nearest tick that is older than `min_lag` and meets `min_count` events or
    `min_interval` of time; with `max_count`, at the farthest one that stays within so many events.
    """

    min_lag: timedelta | None = None
    min_count: int | None = None
    min_interval: timedelta | None = None
    max_count: int | None = None


@dataclass(frozen=True)
class Lease:
    """A claim on an open batch. The epoch fences it: after a take-over it is worth nothing."""

    batch_id: int
    owner: str
    epoch: int
    until: datetime
    prev_tick_id: int
    tick_id: int


@dataclass(frozen=True)
class LeaseInfo:
    """Who holds, or last held, a consumer's open batch."""

    batch_id: int
    owner: str | None
    until: datetime | None
    epoch: int
    is_live: bool


@dataclass(frozen=True)
class BatchInfo:
    """An open batch: what it spans. Sequence numbers are event ids given out until a tick."""

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
class Slice:
    """A part of a batch that is read by itself.

    Attributes:
        sql: the statement that returns it, with all columns of an event.
        rows: what that statement has after FROM, for readers that choose their columns.
        set_columns: which of ev_retry and ev_extra1 to ev_extra4 are not null throughout.
    """

    sql: str
    rows: str
    set_columns: tuple[str, ...]


@dataclass(frozen=True)
class ReadPlan:
    """How to read a batch side by side, and how many events there are."""

    slices: tuple[Slice, ...]
    events: int


@dataclass(frozen=True)
class QueueInfo:
    """A queue's state: the age of its last tick, events since, and their rate."""

    name: str
    ticker_lag: timedelta
    events_per_second: float | None
    new_events: int
    last_tick_id: int


@dataclass(frozen=True)
class ConsumerInfo:
    """A consumer's state. `pending_events` is an upper estimate up to the last tick.

    A subconsumer without a batch stands nowhere: it has no lag, last tick and pending events.
    """

    queue: str
    name: str
    lag: timedelta | None
    last_seen: timedelta
    last_tick_id: int | None
    batch_id: int | None
    pending_events: int | None


@dataclass(frozen=True)
class QueueStats:
    """A queue at a glance.

    Attributes:
        depth: events that the slowest consumer has not finished, not ticked ones among them.
        oldest_message_age: at least the age of the oldest of them; None when there is none.
        events_per_second: the rate between the last two ticks.
        rotation_age: since when the current event table is current.
        last_tick_time: None in a queue that lost its ticks.
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
    """What a check found.

    Attributes:
        queue: None for a check of the whole database.
        check: the check's name, such as `ticker_running` or `consumer_lag:billing`.
        status: ok, warning or critical; unknown where the server does not let one see.
        detail: what was found and, where something is wrong, what to do.
    """

    queue: str | None
    check: str
    status: Literal["ok", "warning", "critical", "unknown"]
    detail: str


@dataclass(frozen=True)
class Metric:
    """A value of a metric, for exporters. A counter never goes down while its labels exist."""

    name: str
    type: Literal["gauge", "counter"]
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True)
class DeadLetterCount:
    """How many dead letters a consumer left for one reason, and since when."""

    consumer: str
    reason: str | None
    count: int
    oldest: datetime


@dataclass(frozen=True)
class DeadLetter:
    """An event that a consumer gave up."""

    id: int
    time: datetime
    reason: str | None
    event_id: int
    retry_count: int | None
    type: str | None
    payload: str | None


@dataclass(frozen=True)
class Status:
    """How one part of what keeps the queues going is: `ok`, or what else, with details."""

    component: str
    status: str
    detail: str

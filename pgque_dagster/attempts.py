"""Which attempt at a batch is due, told from the runs so far and the lease; no input or output."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from .client.states import ConsumerState

# Dagster itself starts these when their turn comes.
_WAITING = (dg.DagsterRunStatus.QUEUED,)
_WORKING = (
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
# A run that has not claimed its batch after so long has died before it could.
_START_UP = timedelta(minutes=15)


@dataclass(frozen=True)
class RetryPolicy:
    """How often a batch is tried, and how long after a failure; the wait doubles each time."""

    max_attempts: int
    backoff: timedelta

    def wait_after(self, attempts: int) -> timedelta:
        """Returns how long to wait after so many attempts."""
        return self.backoff * float(2 ** (attempts - 1))


@dataclass(frozen=True)
class Attempt:
    """The batch gets a run now; `number` counts from 1."""

    number: int


@dataclass(frozen=True)
class Wait:
    """The batch gets no run now; `reason` says why, for a person."""

    reason: str


@dataclass(frozen=True)
class Exhausted:
    """The batch had all its attempts; the last one was that run."""

    attempts: int
    last_run_id: str


def next_attempt(
    state: ConsumerState, runs: Sequence[dg.RunRecord], policy: RetryPolicy, now: datetime
) -> Attempt | Wait | Exhausted:
    """Decides on a batch.

    Args:
        state: the consumer's, with the batch open.
        runs: all that Dagster recorded of the batch.
        policy: how often, and when again.
        now: with its zone.
    """
    batch = name_batch(state)
    for record in runs:
        reason = _why_busy(record, state, now)
        if reason is not None:
            return Wait(f"{batch}: {reason}")
    if state.is_live:
        return Wait(f'{batch} is leased by "{state.owner}" until {_clock(state.lease_until)}')
    if not runs:
        return Attempt(1)

    newest = max(runs, key=lambda record: record.create_timestamp)
    if len(runs) >= policy.max_attempts:
        return Exhausted(len(runs), newest.dagster_run.run_id)
    if newest.end_time is not None:
        again_at = datetime.fromtimestamp(newest.end_time, UTC) + policy.wait_after(len(runs))
        if now < again_at:
            return Wait(
                f"{batch}: run {newest.dagster_run.run_id[:8]} "
                f"{_ended(newest.dagster_run.status)}, attempt {len(runs) + 1} of "
                f"{policy.max_attempts} at {_clock(again_at)}"
            )
    return Attempt(len(runs) + 1)


def name_batch(state: ConsumerState) -> str:
    """Returns how messages call the open batch: `batch 812 of orders/revenue`."""
    part = "" if state.subconsumer is None else f", part {state.subconsumer}"
    return f"batch {state.batch_id} of {state.queue}/{state.consumer}{part}"


def _why_busy(record: dg.RunRecord, state: ConsumerState, now: datetime) -> str | None:
    run = record.dagster_run
    name = f"run {run.run_id[:8]}"
    if run.status in _WAITING:
        return f"{name} is queued ({_age(record.create_timestamp, now)})"
    if run.status not in _WORKING:
        return None
    is_holder = state.owner is not None and state.owner.endswith(run.run_id)
    since = (
        datetime.fromtimestamp(record.start_time, UTC)
        if record.start_time
        else record.create_timestamp
    )
    if is_holder:
        # It let its lease run out: it has died.
        return (
            f"{name} is working on it ({_age(since, now)}, lease until {_clock(state.lease_until)})"
            if state.is_live
            else None
        )
    if now - since > _START_UP:
        return None
    return f"{name} is {run.status.value.lower().replace('_', ' ')} ({_age(since, now)})"


def _ended(status: dg.DagsterRunStatus) -> str:
    return {
        dg.DagsterRunStatus.FAILURE: "failed",
        dg.DagsterRunStatus.CANCELED: "was canceled",
    }.get(status, "ended without an ack")


def _age(since: datetime, now: datetime) -> str:
    seconds = max(0, int((now - since).total_seconds()))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"


def _clock(time: datetime | None) -> str:
    return "an unknown time" if time is None else f"{time.astimezone(UTC):%H:%M:%S} UTC"

"""Decides whether a batch gets its next attempt, from its runs and its lease; does no I/O.

An attempt is a run that claimed the batch, unless it failed with a temporary error
(`client/errors.py`), such as an unreachable target: the batch is retried after it. Each claim
raises the consumer's epoch, and a run is tagged with the epoch at its request. If the epoch is
higher now, the batch has been claimed since.

Dagster decides whether a run that has not claimed is alive: the sensor waits until Dagster ends it.
The lease decides whether a run that claimed is alive. All waits use the database's clock, because
hosts of runs may have other clocks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from ..client.holder import ConsumerState
from ..project.batch_run import BatchRun
from ..project.keys import DIED, PASSES, run_of_owner
from ..project.queue_report import name_batch, short
from .batch_policy import BatchPolicy

# After this time the reason says what to do about a run that has not claimed its batch.
_START_UP = timedelta(minutes=15)


@dataclass(frozen=True)
class RecordedRun:
    """A run that Dagster recorded, and the batch for which it was requested."""

    run: dg.DagsterRun
    created_at: datetime
    request: BatchRun


@dataclass(frozen=True)
class Exhausted:
    """The batch has used up its attempts.

    Attributes:
        unfinished_run_id: a run whose lease was lost but which Dagster still records as working.
    """

    attempts: int
    last_run_id: str
    unfinished_run_id: str | None


def next_attempt(
    state: ConsumerState,
    runs: Sequence[RecordedRun],
    policy: BatchPolicy,
    *,
    since: int = 0,
) -> int | str | Exhausted:
    """Decides whether an open batch gets a run now.

    Args:
        state: the state of the consumer that has the batch open.
        runs: all runs that Dagster recorded for the batch.
        policy: how many attempts, and the wait between them.
        since: the epoch from which attempts count. Earlier attempts failed because of events that
            the batch no longer has.

    Returns:
        The number of the run, which is never used twice; or the reason why no run is requested.
    """
    batch = name_batch(state)
    unfinished = [each for each in runs if not each.run.is_finished]
    why = {each.run.run_id: _why_busy(each, state) for each in unfinished}
    if busy_with := next(filter(None, why.values()), None):
        useless = [run_id[:8] for run_id, busy in why.items() if busy is None]
        return f"{batch}: {busy_with}{_in_the_way(useless)}"
    if state.is_live:
        return f'{batch} is leased by "{state.owner}" until {_clock(state.lease_until)}'
    if not runs:
        return 1

    newest = _newest(runs)
    counted = [each for each in runs if (each.request.epoch or 0) >= since]
    attempts = _count_claims(counted, state)
    passed = [each for each in counted if _what_passes(each)]
    if attempts >= policy.max_attempts:
        lost = unfinished[0].run.run_id if unfinished else None
        return Exhausted(attempts, newest.run.run_id, lost)
    # A killed process reports nothing about its batch. The batch may kill the next run too, and
    # the last attempt waits.
    is_first_death = len(counted) == 1 and attempts + 1 < policy.max_attempts and _has_died(newest)
    if counted and newest not in unfinished and not is_first_death:
        again_at = _last_active(newest, state) + policy.wait_after(len(counted))
        if state.read_at < again_at:
            run = f"{batch}: run {newest.run.run_id[:8]}"
            if newest in passed:
                passing = _what_passes(newest)
                return f"{run} failed, which does not count, again at {_clock(again_at)}: {passing}"
            return (
                f"{run} {_ended(newest.run.status)}, attempt {attempts + 1} of "
                f"{policy.max_attempts} at {_clock(again_at)}"
                f"{_unclaimed(len(counted) - len(passed) - attempts)}"
            )
    return 1 + newest.request.attempt


def why_failing(runs: Sequence[RecordedRun]) -> str | None:
    """Returns the temporary error that ended the newest run, or None."""
    return _what_passes(_newest(runs)) if runs else None


def _newest(runs: Sequence[RecordedRun]) -> RecordedRun:
    return max(runs, key=lambda record: (record.request.attempt, record.created_at))


def _what_passes(record: RecordedRun) -> str | None:
    run = record.run
    run_id, _, reason = run.tags.get(PASSES, "").partition(" ")
    is_failed = run.status == dg.DagsterRunStatus.FAILURE
    return reason if is_failed and run_id == run.run_id else None


def _last_active(newest: RecordedRun, state: ConsumerState) -> datetime:
    """Returns when the batch was last requested, claimed, renewed or released.

    A time in the future was written before the database's clock was set back. It is ignored, so
    nothing waits for it.
    """
    times = [state.active_at, newest.request.requested_at]
    past = [time for time in times if time is not None and time <= state.read_at]
    return max(past, default=datetime.min.replace(tzinfo=UTC))


def _has_died(record: RecordedRun) -> bool:
    run = record.run
    is_failed = run.status == dg.DagsterRunStatus.FAILURE
    return is_failed and run.tags.get(DIED) == run.run_id


def _count_claims(runs: Iterable[RecordedRun], state: ConsumerState) -> int:
    """Returns how many of the runs are attempts. A run without an epoch counts as a claim.

    Runs requested at the same epoch count once, because the earlier run had not claimed the batch
    when the later one was requested. They do not count at all if the run that claimed failed with a
    temporary error.
    """
    passed = [record for record in runs if _what_passes(record)]
    epochs = [record.request.epoch for record in runs if record not in passed]
    assert state.epoch is not None
    claimed_at = {each for each in epochs if each is not None and each < state.epoch}
    claimed_at -= {record.request.epoch for record in passed}
    return epochs.count(None) + len(claimed_at)


def _in_the_way(lost: Sequence[str]) -> str:
    """Says what to do about runs that lost the batch but still count in Dagster."""
    if not lost:
        return ""
    found = "run has lost the batch and still counts"
    if len(lost) > 1:
        found = "runs have lost the batch and still count"
    return (
        f"; {found} towards Dagster's limits: {', '.join(lost)}. Cancel dead runs in Dagster; "
        "run_monitoring in dagster.yaml does it automatically"
    )


def _unclaimed(runs: int) -> str:
    ended = "1 run ended before it" if runs == 1 else f"{runs} runs ended before they"
    return f"; {ended} claimed the batch" if runs else ""


def _why_busy(record: RecordedRun, state: ConsumerState) -> str | None:
    """Returns why an unfinished run blocks others from the batch; None if it lost its lease."""
    run = record.run
    if run_of_owner(state.owner) == run.run_id:
        # If its lease has expired, the run has died.
        return (
            f"run {run.run_id[:8]} is working on it ({_age(record, state)}, lease until "
            f"{_clock(state.lease_until)})"
            if state.is_live
            else None
        )
    if _has_claimed(record, state):
        return None
    status = run.status.value.lower().replace("_", " ")
    if_dead = (
        " and waits for others: see in Dagster which runs are in progress, and cancel the dead ones"
        if run.status == dg.DagsterRunStatus.QUEUED
        else " and has not claimed it: if the run is dead, cancel it in Dagster"
    )
    is_late = state.read_at - record.created_at > _START_UP
    return f"run {run.run_id[:8]} is {status} ({_age(record, state)}){if_dead if is_late else ''}"


def _has_claimed(record: RecordedRun, state: ConsumerState) -> bool:
    """Returns whether a run without the lease has lost it, judging by the epoch.

    A run that somebody re-executed has the tags of the earlier run, which say nothing.
    """
    run = record.run
    if run.status == dg.DagsterRunStatus.QUEUED or run.parent_run_id is not None:
        return False
    assert state.epoch is not None
    return (record.request.epoch or 0) < state.epoch


def _ended(status: dg.DagsterRunStatus) -> str:
    return {
        dg.DagsterRunStatus.FAILURE: "failed",
        dg.DagsterRunStatus.CANCELED: "was canceled",
    }.get(status, "ended without an ack")


def _age(record: RecordedRun, state: ConsumerState) -> str:
    return short(state.read_at - record.created_at)


def _clock(time: datetime | None) -> str:
    return "an unknown time" if time is None else f"{time.astimezone(UTC):%H:%M:%S} UTC"

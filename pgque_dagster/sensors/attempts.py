"""Decides whether a batch gets its next attempt, from its runs and its lease; does no I/O.

An attempt is a run that claimed the batch, unless it failed by what passes (`client/errors.py`),
such as a target that is away: after that, the batch is tried again without end. Each claim raises
the consumer's epoch, and a run is tagged with the epoch at its request. If the epoch is higher now,
the batch was claimed since.

Whether a run that has not claimed is alive is for Dagster to say: it is waited for until Dagster
ends it. Of a run that claimed, the lease says whether it is alive. All waits are measured by the
database's clock, since hosts of runs may have another time.
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
class Exhausted:
    """The batch has used up its attempts.

    Attributes:
        attempts: how many runs claimed it.
        last_run_id: the newest run.
        unfinished_run_id: a run whose lease was lost but which Dagster still records as working.
    """

    attempts: int
    last_run_id: str
    unfinished_run_id: str | None


def next_attempt(
    state: ConsumerState,
    runs: Sequence[dg.RunRecord],
    policy: BatchPolicy,
    *,
    since: int = 0,
    shard: str | None = None,
) -> int | str | Exhausted:
    """Decides whether an open batch gets a run now.

    Args:
        state: the state of the consumer that has the batch open.
        runs: all runs that Dagster recorded for the batch.
        policy: how many attempts, and the wait between them.
        since: the epoch from which attempts count. Earlier ones failed by events that the batch no
            longer has.
        shard: which of a run's batches it is, if the run has those of several shards.

    Returns:
        The number of the run, which is never used twice; or the reason why there is none.
    """
    batch = name_batch(state)
    unfinished = [each for each in runs if not each.dagster_run.is_finished]
    why = {each.dagster_run.run_id: _why_busy(each, state, shard) for each in unfinished}
    if busy_with := next(filter(None, why.values()), None):
        useless = [run_id[:8] for run_id, busy in why.items() if busy is None]
        return f"{batch}: {busy_with}{_in_the_way(useless)}"
    if state.is_live:
        return f'{batch} is leased by "{state.owner}" until {_clock(state.lease_until)}'
    if not runs:
        return 1

    newest = _newest(runs, shard)
    counted = [each for each in runs if (_request(each, shard).epoch or 0) >= since]
    attempts = _count_claims(counted, state, shard)
    passed = [each for each in counted if _what_passes(each)]
    if attempts >= policy.max_attempts:
        lost = unfinished[0].dagster_run.run_id if unfinished else None
        return Exhausted(attempts, newest.dagster_run.run_id, lost)
    # A process that was killed says nothing of its batch. One that dies again may be killed by it,
    # and the last attempt waits.
    is_first_death = len(counted) == 1 and attempts + 1 < policy.max_attempts and _has_died(newest)
    if counted and newest not in unfinished and not is_first_death:
        again_at = _last_active(newest, state, shard) + policy.wait_after(len(counted))
        if state.read_at < again_at:
            run = f"{batch}: run {newest.dagster_run.run_id[:8]}"
            if newest in passed:
                passing = _what_passes(newest)
                return f"{run} failed, which does not count, again at {_clock(again_at)}: {passing}"
            return (
                f"{run} {_ended(newest.dagster_run.status)}, attempt {attempts + 1} of "
                f"{policy.max_attempts} at {_clock(again_at)}"
                f"{_unclaimed(len(counted) - len(passed) - attempts)}"
            )
    return 1 + _request(newest, shard).attempt


def why_failing(runs: Sequence[dg.RunRecord], shard: str | None = None) -> str | None:
    """Returns the error that passes by which the newest run failed; None if it did not."""
    return _what_passes(_newest(runs, shard)) if runs else None


def _newest(runs: Sequence[dg.RunRecord], shard: str | None) -> dg.RunRecord:
    return max(runs, key=lambda record: (_request(record, shard).attempt, record.create_timestamp))


def _what_passes(record: dg.RunRecord) -> str | None:
    run = record.dagster_run
    run_id, _, reason = run.tags.get(PASSES, "").partition(" ")
    is_failed = run.status == dg.DagsterRunStatus.FAILURE
    return reason if is_failed and run_id == run.run_id else None


def _last_active(newest: dg.RunRecord, state: ConsumerState, shard: str | None) -> datetime:
    """Returns when the batch was last requested, claimed, renewed or released.

    A time in the future was written before the database's clock was set back. It is ignored, so
    that nothing waits for it.
    """
    times = [state.active_at, _request(newest, shard).requested_at]
    past = [time for time in times if time is not None and time <= state.read_at]
    return max(past, default=datetime.min.replace(tzinfo=UTC))


def _has_died(record: dg.RunRecord) -> bool:
    run = record.dagster_run
    is_failed = run.status == dg.DagsterRunStatus.FAILURE
    return is_failed and run.tags.get(DIED) == run.run_id


def _request(record: dg.RunRecord, shard: str | None) -> BatchRun:
    found = BatchRun.read(record.dagster_run.tags, shard=shard)
    assert found is not None
    return found


def _count_claims(runs: Iterable[dg.RunRecord], state: ConsumerState, shard: str | None) -> int:
    """Returns how many of the runs are attempts. A run without an epoch counts as a claim.

    Runs requested at the same epoch count once, because the earlier one had not claimed the batch
    when the later one was requested; and not at all, if the one that claimed it failed by what
    passes.
    """
    passed = [record for record in runs if _what_passes(record)]
    epochs = [_request(record, shard).epoch for record in runs if record not in passed]
    assert state.epoch is not None
    claimed_at = {each for each in epochs if each is not None and each < state.epoch}
    claimed_at -= {_request(record, shard).epoch for record in passed}
    return epochs.count(None) + len(claimed_at)


def _in_the_way(lost: Sequence[str]) -> str:
    """Says what to do about runs that lost the batch and that Dagster still counts."""
    if not lost:
        return ""
    found = "run has lost the batch and still counts"
    if len(lost) > 1:
        found = "runs have lost the batch and still count"
    return (
        f"; {found} towards Dagster's limits: {', '.join(lost)}. Cancel what is dead in Dagster; "
        "run_monitoring in dagster.yaml does so by itself"
    )


def _unclaimed(runs: int) -> str:
    ended = "1 run ended before it" if runs == 1 else f"{runs} runs ended before they"
    return f"; {ended} claimed the batch" if runs else ""


def _why_busy(record: dg.RunRecord, state: ConsumerState, shard: str | None) -> str | None:
    """Returns why an unfinished run keeps others from the batch; None if it lost its lease."""
    run = record.dagster_run
    if run_of_owner(state.owner) == run.run_id:
        # If its lease has expired, the run has died.
        return (
            f"run {run.run_id[:8]} is working on it ({_age(record, state)}, lease until "
            f"{_clock(state.lease_until)})"
            if state.is_live
            else None
        )
    if _has_claimed(record, state, shard):
        return None
    status = run.status.value.lower().replace("_", " ")
    if_dead = (
        " and waits for others: see in Dagster which runs are in progress, and cancel the dead ones"
        if run.status == dg.DagsterRunStatus.QUEUED
        else " and has not claimed it: if the run is dead, cancel it in Dagster"
    )
    is_late = state.read_at - record.create_timestamp > _START_UP
    return f"run {run.run_id[:8]} is {status} ({_age(record, state)}){if_dead if is_late else ''}"


def _has_claimed(record: dg.RunRecord, state: ConsumerState, shard: str | None) -> bool:
    """Whether a run without the lease has lost it, as far as the epoch tells.

    The tags of a run that somebody re-executed are those of the earlier run, and tell nothing.
    """
    run = record.dagster_run
    if run.status == dg.DagsterRunStatus.QUEUED or run.parent_run_id is not None:
        return False
    assert state.epoch is not None
    return (_request(record, shard).epoch or 0) < state.epoch


def _ended(status: dg.DagsterRunStatus) -> str:
    return {
        dg.DagsterRunStatus.FAILURE: "failed",
        dg.DagsterRunStatus.CANCELED: "was canceled",
    }.get(status, "ended without an ack")


def _age(record: dg.RunRecord, state: ConsumerState) -> str:
    return short(state.read_at - record.create_timestamp)


def _clock(time: datetime | None) -> str:
    return "an unknown time" if time is None else f"{time.astimezone(UTC):%H:%M:%S} UTC"

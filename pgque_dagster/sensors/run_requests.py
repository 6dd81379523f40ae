"""Decides which batches get a run now, for sensors and schedules alike.

One query reads the states of all consumers, another their runs, and a third one what waits for
those without a batch, so that even hundreds of consumers need few queries. Only a consumer whose
next batch is due needs queries of its own.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any, Literal

import dagster as dg

from ..client import (
    Batch,
    Client,
    ConnectionFailed,
    ConsumerInfo,
    Limits,
    PgqueError,
)
from ..client.batch import give_up, hold, needs_run, set_aside_epoch
from ..client.holder import ConsumerState, Holder, consumer_states
from ..client.registrations import enter_deployment
from ..project.batch_run import BatchRun
from ..project.consumers import AssetConsumer
from ..project.keys import BATCH_ID, INCARNATION
from ..project.queue_report import name_batch
from .attempts import (
    UNFINISHED,
    AttemptPolicy,
    Exhausted,
    RunAttempt,
    Wait,
    next_attempt,
)
from .batch_opening import open_batches

OnExhausted = Literal["hold", "dead_letter"]

# After this time the next evaluation handles the remaining consumers. Dagster's limit is 60 s.
_TIME_LIMIT = timedelta(seconds=25)
_GIVE_UP_TTL = timedelta(minutes=2)


@dataclass(frozen=True)
class BatchPolicy:
    """When a batch is opened, how many attempts it gets, and what happens when they are used up."""

    limits: Limits
    retry: AttemptPolicy
    on_exhausted: OnExhausted = "hold"


@dataclass
class Findings:
    """The runs to request, and why other batches get none.

    Attributes:
        is_consuming: whether a batch has an unfinished run.
        next_first: the consumer that comes first in the next evaluation.
    """

    requests: list[dg.RunRequest] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    is_consuming: bool = False
    next_first: str = ""


# A consumer, and its state or that of one of its slots, with an open batch.
_OpenBatch = tuple[AssetConsumer, ConsumerState]


def find_batches(
    instance: dg.DagsterInstance,
    client: Client,
    consumers: Sequence[AssetConsumer],
    policy: BatchPolicy,
    *,
    first: str | None = None,
    deployment: str | None = None,
    run_config: Mapping[str, Any] | None = None,
    time_limit: timedelta = _TIME_LIMIT,
) -> Findings:
    """Opens the batches that are due and decides which of the open batches get a run.

    An error of one consumer becomes a reason and does not affect the other consumers.

    Args:
        instance: records the runs.
        client: a client that may consume.
        consumers: in any order.
        policy: when batches are opened and how many attempts they get.
        first: the consumer that comes first, as the previous evaluation said.
        deployment: the one for which to consume; consumers of others are refused. None refuses
            nobody.
        run_config: of the runs.
        time_limit: after this time the remaining consumers are left to the next evaluation.

    Raises:
        ConnectionFailed: if the connection to the database is lost.
    """
    names = [str(consumer) for consumer in consumers]
    start = names.index(first) if first in names else 0
    order = [*consumers[start:], *consumers[:start]]
    findings = Findings(next_first=str(order[1 % len(order)]) if order else "")
    ends_at = time.monotonic() + time_limit.total_seconds()

    opened = _open_due(instance, client, order, policy, deployment, findings, ends_at)
    incarnation = str(client.incarnation()) if opened else ""
    runs = _recorded_runs(instance, opened, incarnation)
    findings.is_consuming = any(
        record.dagster_run.status in UNFINISHED for records in runs.values() for record in records
    )
    for consumer, state in opened:
        if time.monotonic() >= ends_at:
            _resume_from(consumer, findings)
            break
        try:
            of_batch = runs.get(state.batch_id or 0, ())
            decision = _decide(client, consumer, state, of_batch, policy)
        except ConnectionFailed:
            raise
        except PgqueError as error:
            decision = f"{consumer}: {error}"
        if isinstance(decision, RunAttempt):
            request = _request(consumer, state, decision, incarnation, run_config)
            findings.requests.append(request)
        else:
            findings.reasons.append(decision)
    return findings


def _resume_from(consumer: AssetConsumer, findings: Findings) -> None:
    findings.reasons.append(f"{consumer} comes first in the next evaluation")
    findings.next_first = str(consumer)


def _open_due(
    instance: dg.DagsterInstance,
    client: Client,
    consumers: Sequence[AssetConsumer],
    policy: BatchPolicy,
    deployment: str | None,
    findings: Findings,
    ends_at: float,
) -> list[_OpenBatch]:
    """Opens the batches that are due. Returns all open batches."""
    names = [(consumer.queue, consumer.name) for consumer in consumers]
    states: dict[tuple[str, str], list[ConsumerState]] = {}
    for state in client.run(consumer_states(names, policy.limits)):
        states.setdefault((state.queue, state.consumer), []).append(state)

    @cache
    def waiting() -> Mapping[tuple[str, str], ConsumerInfo]:
        return {(info.queue, info.name): info for info in client.consumers()}

    opened: list[_OpenBatch] = []
    for consumer in consumers:
        if time.monotonic() >= ends_at:
            _resume_from(consumer, findings)
            break
        found: list[ConsumerState] | str
        of_consumer = states[consumer.queue, consumer.name]
        try:
            _enter(client, of_consumer[0], deployment)
            found = open_batches(instance, client, of_consumer, policy.limits, consumer, waiting)
        except ConnectionFailed:
            raise
        except PgqueError as error:
            found = str(error)
        if isinstance(found, str):
            findings.reasons.append(f"{consumer}: {found}")
        else:
            opened += [(consumer, state) for state in found]
    return opened


def _enter(client: Client, main: ConsumerState, deployment: str | None) -> None:
    """Makes a new consumer one of this deployment. Refuses one of another deployment."""
    if deployment is not None and main.role is not None and main.deployment != deployment:
        client.run(enter_deployment(main.queue, main.consumer, deployment))


def _recorded_runs(
    instance: dg.DagsterInstance, opened: Sequence[_OpenBatch], incarnation: str
) -> Mapping[int, list[dg.RunRecord]]:
    """Returns the runs of all open batches, by the id of the batch.

    The incarnation is part of the query, because batch ids repeat in other databases.
    """
    runs: dict[int, list[dg.RunRecord]] = {}
    if not opened:
        return runs
    ids = [str(state.batch_id) for _, state in opened]
    for record in instance.get_run_records(
        dg.RunsFilter(tags={BATCH_ID: ids, INCARNATION: incarnation})
    ):
        run = BatchRun.read(record.dagster_run.tags)
        if run is not None:
            runs.setdefault(run.batch_id, []).append(record)
    return runs


def _decide(
    client: Client,
    consumer: AssetConsumer,
    state: ConsumerState,
    runs: Sequence[dg.RunRecord],
    policy: BatchPolicy,
) -> RunAttempt | str:
    assert state.batch_id is not None
    decision = next_attempt(state, runs, policy.retry)
    if isinstance(decision, Exhausted) and state.held_reason is None:
        since = client.run(set_aside_epoch(state.batch_id))
        if since is not None:
            decision = next_attempt(state, runs, policy.retry, since=since)
    if isinstance(decision, Wait):
        return decision.reason
    if isinstance(decision, Exhausted):
        return _exhausted(client, consumer, state, decision, policy.on_exhausted)
    # A batch that already had a run has events.
    if not runs and not client.run(needs_run(state.batch_id)):
        _claim(client, state).ack()
        return f"{consumer}: no batch yet, its ticks had no event"
    return decision


def _request(
    consumer: AssetConsumer,
    state: ConsumerState,
    attempt: RunAttempt,
    incarnation: str,
    run_config: Mapping[str, Any] | None,
) -> dg.RunRequest:
    assert state.batch_id is not None
    run = BatchRun(
        Holder.of(state), state.batch_id, incarnation, attempt.number, state.epoch, state.read_at
    )
    return dg.RunRequest(
        run_key=run.key,
        asset_selection=list(consumer.asset_keys),
        # Dagster's own retries would compete with the sensor's next attempt.
        tags={**run.tags, "dagster/max_retries": "0"},
        run_config=run_config,
    )


def _exhausted(
    client: Client,
    consumer: AssetConsumer,
    state: ConsumerState,
    exhausted: Exhausted,
    on_exhausted: OnExhausted,
) -> str:
    assert state.batch_id is not None and state.epoch is not None
    attempts = f"after {exhausted.attempts} attempt{'' if exhausted.attempts == 1 else 's'}"
    attempts += f", the last in run {exhausted.last_run_id[:8]}"
    unfinished = exhausted.unfinished_run_id
    if on_exhausted == "hold" or unfinished is not None:
        what_to_do = (
            _what_to_do(consumer, state) if on_exhausted == "hold" else _end_first(str(unfinished))
        )
        reason = f"{attempts}; {what_to_do}"
        if state.held_reason is None:
            client.run(hold(state.batch_id, state.epoch, reason))
        return f"{name_batch(state)}: held {state.held_reason or reason}"
    events = client.run(give_up(_claim(client, state).lease, f"batch given up {attempts}"))
    return f"{name_batch(state)}: given up {attempts}; its {events} events are dead letters"


def _end_first(run_id: str) -> str:
    return (
        f"run {run_id[:8]} is still recorded as started, although it has lost its lease: cancel it "
        "in Dagster, or let it end"
    )


def _what_to_do(consumer: AssetConsumer, state: ConsumerState) -> str:
    if state.member is not None:
        return "correct the cause and re-execute that run"
    assets = ",".join(key.to_user_string() for key in consumer.asset_keys)
    return (
        f"correct the cause and materialize {assets} by hand: use Materialize on its page, or run "
        f"dg launch --assets {assets} in a dg project"
    )


def _claim(client: Client, state: ConsumerState) -> Batch:
    batch = Holder.of(state).claim(
        client, owner="pgque sensor, to finish it", ttl=_GIVE_UP_TTL, batch_id=state.batch_id
    )
    # Without a batch of that id, the claim raises.
    assert batch is not None
    return batch

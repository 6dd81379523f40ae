"""Decides which batches get a run now, for both sensors and schedules.

One query reads the states of all consumers, another their runs, and a third what waits for those
without a batch, so even hundreds of consumers need few queries. Only a consumer whose next batch is
due needs queries of its own.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any, Self

import dagster as dg

from ..client import Batch, BatchNotOpen, Client, ConnectionFailed, ConsumerInfo, PgqueError
from ..client.batch import (
    ack_empty,
    give_up,
    hold,
    needs_run,
    note_failing,
    release,
    set_aside_epoch,
)
from ..client.holder import ConsumerState, Holder, consumer_states
from ..client.models import ConsumingAsset
from ..client.registrations import enter_deployment
from ..project.batch_run import BatchRun
from ..project.consumers import AssetConsumer
from ..project.database import Database
from ..project.deployment import consuming_asset, key_names, note_consumers
from ..project.keys import BATCH_ID, DIED, INCARNATION, WARM, of_shard, run_of_owner
from ..project.queue_report import name_batch
from ..project.resource import PgqueResource
from .attempts import Exhausted, RecordedRun, next_attempt, why_failing
from .batch_opening import open_batches
from .batch_policy import BatchPolicy
from .failures import why_failed

# After this time the next evaluation handles the remaining consumers. Dagster's limit is 60 s.
_TIME_LIMIT = timedelta(seconds=25)
_GIVE_UP_TTL = timedelta(minutes=2)
_IN_PROCESS: dict[str, Any] = {"execution": {"config": {"in_process": {}}}}

# A consumer, and its state or that of one of its slots, with an open batch.
_OpenBatch = tuple[AssetConsumer, ConsumerState]


@dataclass
class Findings:
    """The runs to request, and why other batches get no run.

    Attributes:
        is_consuming: whether a batch has an unfinished run.
        next_first: the consumer that comes first in the next evaluation.
    """

    requests: list[dg.RunRequest] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    is_consuming: bool = False
    next_first: str = ""


@dataclass(frozen=True)
class BatchFinder:
    """Opens the due batches and decides which of the open batches get a run.

    Args:
        asks: the deployment and location that consume; consumers of others are refused.
        time_limit: after this time the remaining consumers are left to the next evaluation.
    """

    instance: dg.DagsterInstance
    client: Client
    policy: BatchPolicy
    asks: ConsumingAsset = field(default_factory=ConsumingAsset)
    run_config: Mapping[str, Any] | None = None
    time_limit: timedelta = _TIME_LIMIT

    @classmethod
    def of(
        cls,
        context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext,
        pgque: PgqueResource,
        client: Client,
        database: Database,
        policy: BatchPolicy,
        run_config: Mapping[str, Any] | None,
    ) -> Self:
        """Returns the requests of an evaluation, and records what the code location consumes.

        Raises:
            InvalidArgument: if this process also consumes from the database under another name.
        """
        database.refuse_second_name(client)
        deployment = pgque.deployment_of(context.instance)
        note_consumers(context, client, database, deployment)
        return cls(
            context.instance, client, policy, consuming_asset(context, deployment), run_config
        )

    def find(self, consumers: Sequence[AssetConsumer], first: str | None = None) -> Findings:
        """Opens batches and decides.

        An error of one consumer becomes a reason and does not affect the other consumers.

        Args:
            consumers: in any order.
            first: the consumer that comes first, as the previous evaluation said.

        Raises:
            ConnectionFailed: if the connection to the database is lost.
        """
        names = [str(consumer) for consumer in consumers]
        start = names.index(first) if first in names else 0
        order = [*consumers[start:], *consumers[:start]]
        findings = Findings(next_first=str(order[1 % len(order)]) if order else "")
        ends_at = time.monotonic() + self.time_limit.total_seconds()

        opened = self._open_due(order, findings, ends_at)
        incarnation = str(self.client.incarnation()) if opened else ""
        runs = self._recorded_runs(opened, incarnation)
        findings.is_consuming = any(
            not each.run.is_finished for records in runs.values() for each in records
        )
        for consumer, state in opened:
            if time.monotonic() >= ends_at:
                _resume_from(consumer, findings)
                break
            try:
                decision = self._decide(consumer, state, runs.get(state.batch_id or 0, ()))
            except ConnectionFailed:
                raise
            except PgqueError as error:
                decision = f"{consumer}: {error}"
            if isinstance(decision, int):
                request = self._request(consumer, state, decision, incarnation)
                findings.requests.append(request)
            else:
                findings.reasons.append(decision)
        return findings

    def _open_due(
        self, consumers: Sequence[AssetConsumer], findings: Findings, ends_at: float
    ) -> list[_OpenBatch]:
        """Opens the due batches. Returns all open batches."""
        names = [(consumer.queue, consumer.name) for consumer in consumers]
        states: dict[tuple[str, str], list[ConsumerState]] = {}
        for state in self.client.run(consumer_states(names, self.policy.limits)):
            states.setdefault((state.queue, state.consumer), []).append(state)

        @cache
        def waiting() -> Mapping[tuple[str, str], ConsumerInfo]:
            return {(info.queue, info.name): info for info in self.client.consumers()}

        opened: list[_OpenBatch] = []
        for consumer in consumers:
            if time.monotonic() >= ends_at:
                _resume_from(consumer, findings)
                break
            found: list[ConsumerState] | str
            of_consumer = states[consumer.queue, consumer.name]
            try:
                self._enter(of_consumer[0], consumer)
                found = open_batches(
                    self.instance, self.client, of_consumer, self.policy.limits, consumer, waiting
                )
            except ConnectionFailed:
                raise
            except PgqueError as error:
                found = str(error)
            if isinstance(found, str):
                findings.reasons.append(f"{consumer}: {found}")
            else:
                opened += [(consumer, state) for state in found]
        return opened

    def _enter(self, main: ConsumerState, consumer: AssetConsumer) -> None:
        """Assigns a new consumer to its asset. Refuses a consumer of another asset."""
        asset = replace(self.asks, assets=key_names(consumer.asset_keys))
        if main.role is not None and main.belongs_to != asset:
            self.client.run(enter_deployment(main.queue, main.consumer, asset))

    def _recorded_runs(
        self, opened: Sequence[_OpenBatch], incarnation: str
    ) -> Mapping[int, list[RecordedRun]]:
        """Returns the runs of all open batches, by the id of the batch.

        The incarnation is part of the query, because batch ids repeat across databases.
        """
        runs: dict[int, list[RecordedRun]] = {}
        if not opened:
            return runs
        ids = [str(state.batch_id) for _, state in opened]
        # All of them are in one database.
        shard = opened[0][0].shard
        tags = {of_shard(BATCH_ID, shard): ids, of_shard(INCARNATION, shard): incarnation}
        for record in self.instance.get_run_records(dg.RunsFilter(tags=tags)):
            run = BatchRun.read(record.dagster_run.tags, shard=shard)
            if run is not None:
                runs.setdefault(run.batch_id, []).append(
                    RecordedRun(record.dagster_run, record.create_timestamp, run)
                )
        return runs

    def _decide(
        self, consumer: AssetConsumer, state: ConsumerState, runs: Sequence[RecordedRun]
    ) -> int | str:
        """Returns the number of the batch's next run, or why it gets no run."""
        state = self._without_dead_owner(state, runs)
        assert state.batch_id is not None
        decision = next_attempt(state, runs, self.policy)
        if isinstance(decision, Exhausted) and state.held_reason is None:
            since = self.client.run(set_aside_epoch(state.batch_id))
            if since is not None:
                decision = next_attempt(state, runs, self.policy, since=since)
        if isinstance(decision, Exhausted):
            return self._end_attempts(consumer, state, decision)
        if (why := why_failing(runs)) and not state.is_live:
            with suppress(BatchNotOpen):
                self.client.run(note_failing(state.batch_id, state.epoch, why))
        # A batch that already had a run has events.
        is_new = isinstance(decision, int) and not runs
        if is_new and not self.client.run(needs_run(state.batch_id)):
            ack_empty(self._claim(state))
            return f"{consumer}: no batch yet, its ticks had no event"
        return decision

    def _without_dead_owner(
        self, state: ConsumerState, runs: Sequence[RecordedRun]
    ) -> ConsumerState:
        """Releases the lease of a run whose process is known to be dead."""
        owner = run_of_owner(state.owner)
        is_dead = owner in (each.run.tags.get(DIED) for each in runs)
        if not state.is_live or owner is None or not is_dead:
            return state
        assert state.batch_id is not None and state.owner is not None and state.epoch is not None
        self.client.run(release(state.batch_id, state.owner, state.epoch))
        return replace(state, is_live=False)

    def _request(
        self, consumer: AssetConsumer, state: ConsumerState, attempt: int, incarnation: str
    ) -> dg.RunRequest:
        assert state.batch_id is not None
        run = BatchRun(
            Holder.of(state),
            state.batch_id,
            incarnation,
            attempt,
            state.epoch,
            state.read_at,
            consumer.shard,
        )
        of_database = consumer.database.tags if consumer.shard is None else {WARM: "true"}
        return dg.RunRequest(
            run_key=run.key,
            asset_selection=list(consumer.asset_keys),
            # Dagster's own retries would compete with the sensor's next attempt.
            tags={**run.tags, **of_database, "dagster/max_retries": "0"},
            run_config=self.run_config,
        )

    def _end_attempts(
        self, consumer: AssetConsumer, state: ConsumerState, exhausted: Exhausted
    ) -> str:
        """Holds the batch, or makes its events dead letters if no run of it is unfinished."""
        assert state.batch_id is not None and state.epoch is not None
        attempts = f"after {exhausted.attempts} attempt{'' if exhausted.attempts == 1 else 's'}"
        attempts += f", the last in run {exhausted.last_run_id[:8]}"
        if self.policy.on_exhausted == "hold":
            what_to_do = _what_to_do(consumer, state)
        elif exhausted.unfinished_run_id is not None:
            what_to_do = (
                f"run {exhausted.unfinished_run_id[:8]} is still recorded as started, although it "
                "has lost its lease: cancel it in Dagster, or let it end"
            )
        else:
            lease = self._claim(state).lease
            events = self.client.run(give_up(lease, f"batch given up {attempts}"))
            return f"{name_batch(state)}: given up {attempts}; its {events} events are dead letters"
        reason = state.held_reason
        if reason is None:
            why = why_failed(self.instance, exhausted.last_run_id)
            reason = f"{attempts}: {why}; {what_to_do}"
            self.client.run(hold(state.batch_id, state.epoch, reason))
        return f"{name_batch(state)}: held {reason}"

    def _claim(self, state: ConsumerState) -> Batch:
        batch = Holder.of(state).claim(
            self.client,
            owner="pgque sensor, to finish it",
            ttl=_GIVE_UP_TTL,
            batch_id=state.batch_id,
        )
        # If there is no batch with that id, the claim raises.
        assert batch is not None
        return batch


def _resume_from(consumer: AssetConsumer, findings: Findings) -> None:
    findings.reasons.append(f"{consumer} comes first in the next evaluation")
    findings.next_first = str(consumer)


def _what_to_do(consumer: AssetConsumer, state: ConsumerState) -> str:
    if state.member is not None:
        return "correct the cause and re-execute that run"
    assets = ",".join(key.to_user_string() for key in consumer.asset_keys)
    return (
        f"correct the cause and materialize {assets} by hand: use Materialize on its page, or run "
        f"dg launch --assets {assets} in a dg project"
    )


def without_step_process(
    repository: dg.RepositoryDefinition | None, job_name: str | None
) -> dict[str, Any] | None:
    """Returns the configuration of runs that lets the default executor use the run's process.

    Such a run has one step, for which the default executor would start another process, with its
    own imports and Spark session. An executor that the project chose is left alone.

    Args:
        repository: the repository of the code location; None in a test.
        job_name: the job of the runs.
    """
    if repository is None or job_name is None:
        return None
    job = repository.get_job(job_name)
    return _IN_PROCESS if job.executor_def is dg.multi_or_in_process_executor else None

"""Checks on how far consumers are behind."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg

from ..client import Client, ConsumerInfo, LeaseInfo, Limits
from ..client.calls.states import ConsumerState, consumer_states
from ..consumers import Consumer, consumers_of
from ..keys import queue_key
from ..resource import PgqueResource
from ..sensors.attempts import name_batch
from ..sensors.observation import consumer_lag
from .naming import identifier


@dataclass(frozen=True)
class _Budget:
    max_lag: timedelta
    warn_lag: timedelta | None
    max_pending_events: int | None

    def verdict(
        self, lag: timedelta, pending: int, severity: dg.AssetCheckSeverity
    ) -> tuple[str | None, dg.AssetCheckSeverity]:
        """Says what is wrong, if anything, and how bad that is."""
        if lag > self.max_lag:
            return f"{_rounded(lag)} behind, {self.max_lag} allowed", severity
        if self.max_pending_events is not None and pending > self.max_pending_events:
            return f"{pending} events wait, {self.max_pending_events} allowed", severity
        if self.warn_lag is not None and lag > self.warn_lag:
            return (
                f"{_rounded(lag)} behind, {self.max_lag} allowed",
                dg.AssetCheckSeverity.WARN,
            )
        return None, severity


def build_consumer_lag_checks(
    assets: Sequence[dg.AssetsDefinition],
    *,
    max_lag: timedelta,
    warn_lag: timedelta | None = None,
    max_pending_events: int | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Makes a check `consumer_lag_<consumer>` on the queue of each consuming asset.

    It is evaluated with the other checks of the queue, whatever becomes of the asset's runs. A
    queue without events fails none. The lag is the age of the tick where the consumer stands while
    events wait for it: the oldest of them may be younger, by as long as the consumer had nothing to
    do before. A batch that is held fails the check as an error, however short the lag.

    Args:
        assets: assets made by `@pgque_asset`; one consumer each.
        max_lag: how far a consumer may be behind.
        warn_lag: beyond this there is a warning; less than `max_lag`.
        max_pending_events: how many events may wait for it.
        severity: of a failure beyond `max_lag` or `max_pending_events`.
        automation_condition: when Dagster evaluates the checks by itself.

    Returns:
        The checks, for the Definitions. They need the resource `pgque`.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, two share a consumer, or the
            limits make no sense.
    """
    if max_lag <= timedelta(0) or (warn_lag is not None and not timedelta(0) < warn_lag < max_lag):
        raise dg.DagsterInvalidDefinitionError(
            f"max_lag={max_lag}, warn_lag={warn_lag}: both are positive, and warn_lag is the less"
        )
    if max_pending_events is not None and max_pending_events < 0:
        raise dg.DagsterInvalidDefinitionError(
            f"max_pending_events={max_pending_events}: give 0 or more"
        )
    budget = _Budget(max_lag, warn_lag, max_pending_events)
    consumers = consumers_of(assets)
    specs = [
        dg.AssetCheckSpec(
            f"consumer_lag_{identifier(consumer.name)}",
            asset=queue_key(consumer.queue),
            description=f"Consumer {consumer} is at most {max_lag} behind.",
            automation_condition=automation_condition,
        )
        for consumer in consumers
    ]
    consumer_of = {spec.key: consumer for spec, consumer in zip(specs, consumers, strict=True)}

    @dg.multi_asset_check(
        name=f"consumer_lag_{identifier(' '.join(map(str, consumers)))}",
        specs=specs,
        can_subset=True,
    )
    def check_lag(
        context: dg.AssetCheckExecutionContext, pgque: PgqueResource
    ) -> Iterator[dg.AssetCheckResult]:
        with pgque.client() as client:
            for key in sorted(context.selected_asset_check_keys):
                yield _result(client, key, consumer_of[key], budget, severity)

    return [check_lag] if consumers else []


def _result(
    client: Client,
    key: dg.AssetCheckKey,
    consumer: Consumer,
    budget: _Budget,
    severity: dg.AssetCheckSeverity,
) -> dg.AssetCheckResult:
    states = client.run(consumer_states([(consumer.queue, consumer.name)], Limits()))
    infos = _find(client, consumer, states)
    if not infos:
        return dg.AssetCheckResult(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{consumer} is not registered; the asset's sensor or first run does "
            "that, and until then no event is kept for it",
        )
    lag = max(consumer_lag(info) for info in infos)
    pending = sum(info.pending_events or 0 for info in infos)
    problem, how_bad = budget.verdict(lag, pending, severity)
    what_to_do = _advice(consumer, client.lease_info(consumer.queue, consumer.name))
    if held := _held(states):
        problem, how_bad, what_to_do = held, dg.AssetCheckSeverity.ERROR, held
    return dg.AssetCheckResult(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=problem is None,
        severity=how_bad,
        description=problem,
        metadata={
            "lag_seconds": lag.total_seconds(),
            "max_lag_seconds": budget.max_lag.total_seconds(),
            "pending_events": pending,
            "last_seen_seconds": min(info.last_seen for info in infos).total_seconds(),
            **({"what_to_do": what_to_do} if problem else {}),
        },
    )


def _held(states: Sequence[ConsumerState]) -> str:
    return "; ".join(
        f"{name_batch(state)} is held {state.held_reason}" for state in states if state.held_reason
    )


def _find(
    client: Client, consumer: Consumer, states: Sequence[ConsumerState]
) -> list[ConsumerInfo]:
    """Returns where the consumer stands, and each part of it that works on a batch beside it."""
    parts = {f"{consumer.name}.{state.subconsumer}" for state in states if state.subconsumer}
    infos = client.consumers(consumer.queue)
    return [info for info in infos if info.name == consumer.name or info.name in parts]


def _advice(consumer: Consumer, lease: LeaseInfo | None) -> str:
    if lease is None:
        return (
            f"No batch of {consumer} is open: see that the sensor or worker of "
            f"{consumer.asset_keys[0].to_user_string()} runs."
        )
    if lease.is_live:
        return (
            f'Batch {lease.batch_id} is being worked on by "{lease.owner}", until {lease.until}: '
            "if that takes too long, lower max_events of the sensor, or give Spark more."
        )
    return (
        f"Batch {lease.batch_id} is open and nobody works on it"
        + (f', "{lease.owner}" did last' if lease.owner else "")
        + f": see the latest runs of {consumer.asset_keys[0].to_user_string()} for their errors."
    )


def _rounded(time: timedelta) -> timedelta:
    return timedelta(seconds=round(time.total_seconds()))

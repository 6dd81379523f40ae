"""Checks on how far consumers are behind."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import dagster as dg

from ..client import Client, ConsumerInfo, LeaseInfo, Limits
from ..client.calls.states import ConsumerState, consumer_states
from ..client.holder import Holder
from ..project.consumers import AssetConsumer, consumers_of
from ..project.keys import identifier, queue_key
from ..project.queue_report import consumer_lag
from ..project.resource import PgqueResource
from ..sensors.attempts import name_batch


@dataclass(frozen=True)
class _Budget:
    max_lag: timedelta
    warn_lag: timedelta | None
    max_pending_events: int | None

    def verdict(
        self, lag: timedelta, pending: int, severity: dg.AssetCheckSeverity
    ) -> tuple[str | None, dg.AssetCheckSeverity]:
        """Returns the problem, if there is one, and its severity."""
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
    """Builds a check `consumer_lag_<consumer>` on the queue of each consuming asset.

    The check is on the queue, so it is evaluated even if the asset's runs fail. It passes if no
    event waits. Otherwise the lag is the age of the tick at the consumer's position; the oldest
    waiting event may be younger, if the consumer was idle before. If all events that wait are in no
    tick yet, as on a paused queue, it is the time that the first of them has waited. A held batch
    fails the check as an error, however short the lag is.

    Args:
        assets: assets made by `@pgque_asset`, each with its own consumer.
        max_lag: how far a consumer may be behind.
        warn_lag: beyond this the check warns; must be less than `max_lag`.
        max_pending_events: how many events may wait for a consumer.
        severity: of a failure beyond `max_lag` or `max_pending_events`, ERROR or WARN.
        automation_condition: when Dagster evaluates the checks by itself.

    Returns:
        The checks, for the Definitions. They need the resource `pgque`.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, two assets share a consumer,
            or a limit is out of range.
    """
    if max_lag <= timedelta(0) or (warn_lag is not None and not timedelta(0) < warn_lag < max_lag):
        raise dg.DagsterInvalidDefinitionError(
            f"max_lag={max_lag}, warn_lag={warn_lag}: both must be positive, and warn_lag must be "
            "less than max_lag"
        )
    if max_pending_events is not None and max_pending_events < 0:
        raise dg.DagsterInvalidDefinitionError(
            f"max_pending_events={max_pending_events}: it must be 0 or more"
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
    consumer: AssetConsumer,
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
            description=f"{consumer} is not registered. The asset's sensor or first run registers "
            "it; until then the queue keeps no events for it",
        )
    (stats,) = (each for each in client.queue_stats() if each.queue == consumer.queue)
    if stats.oldest_message_age is None:  # ids of senders that rolled back
        infos = [replace(info, pending_events=0) for info in infos]
    lag = max(consumer_lag(info) for info in infos)
    waiting = [info.pending_events or 0 for info in infos]
    # Each slot counts the events of all keys.
    pending = max(waiting) if states[0].role == "partitioned" else sum(waiting)
    pending += infos[0].unticked_events
    problem, how_bad = budget.verdict(lag, pending, severity)
    what_to_do = _advice(
        consumer,
        client.lease_info(consumer.queue, max(infos, key=consumer_lag).name),
        waits_for_tick=pending == infos[0].unticked_events,
    )
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
    client: Client, consumer: AssetConsumer, states: Sequence[ConsumerState]
) -> list[ConsumerInfo]:
    """Returns the consumer, and its subconsumers or slots."""
    names = {Holder.of(state).name for state in states}
    return [info for info in client.consumers(consumer.queue) if info.name in names]


def _advice(consumer: AssetConsumer, lease: LeaseInfo | None, *, waits_for_tick: bool) -> str:
    if lease is None and waits_for_tick:
        return (
            f"The events are in no tick yet: resume queue {consumer.queue} if it is paused, or "
            "check that a ticker runs."
        )
    if lease is None:
        return (
            f"No batch of {consumer} is open: check that the sensor of "
            f"{consumer.asset_keys[0].to_user_string()} runs."
        )
    if lease.is_live:
        return (
            f'"{lease.owner}" works on batch {lease.batch_id} (lease until {lease.until}): if that '
            "takes too long, lower max_events of the sensor, or give Spark more resources."
        )
    return (
        f"Batch {lease.batch_id} is open and nobody works on it"
        + (f', "{lease.owner}" was the last' if lease.owner else "")
        + f": look for errors in the latest runs of {consumer.asset_keys[0].to_user_string()}."
    )


def _rounded(time: timedelta) -> timedelta:
    return timedelta(seconds=round(time.total_seconds()))

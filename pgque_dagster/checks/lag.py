"""Checks on how far consumers are behind."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import dagster as dg

from ..client import Client, ConnectionFailed, Limits
from ..client.holder import Holder, consumer_states
from ..client.ranges import duration_problem
from ..project.consumers import AssetConsumer, consumers_of, database_of
from ..project.keys import identifier
from ..project.queue_report import consumer_lag, why_held
from ..project.resource import PgqueResource, takes_resource


def build_consumer_lag_checks(
    assets: Sequence[dg.AssetsDefinition],
    *,
    max_lag: timedelta,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Builds a check `consumer_lag_<consumer>` on the queue of each consuming asset.

    The check is on the queue, so it is evaluated even if the asset's runs fail. It passes if no
    event waits. Otherwise the lag is the time that the first event has waited, even if it is in no
    tick yet, as on a paused queue. A held batch fails the check regardless of the lag, and so
    does a database that cannot be reached.

    Args:
        assets: assets made by `@pgque_asset`, of one database, each with its own consumer; or one
            with `databases`, which gets a check for each.
        max_lag: how far a consumer may be behind.
        automation_condition: when Dagster evaluates the checks automatically.

    Returns:
        The checks, for the Definitions. They need the resource of the assets' database.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, two assets share a consumer,
            or the limit is not positive.
    """
    problem = duration_problem("max_lag", max_lag, positive=True)
    if problem is not None:
        raise dg.DagsterInvalidDefinitionError(f"a check on the lag: {problem}")
    consumers = consumers_of(assets)
    if consumers and consumers[0].shard is not None:
        return [_check([each], max_lag, automation_condition) for each in consumers]
    return [_check(consumers, max_lag, automation_condition)] if consumers else []


def _check(
    consumers: Sequence[AssetConsumer],
    max_lag: timedelta,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None,
) -> dg.AssetChecksDefinition:
    database = database_of(consumers)
    specs = [
        dg.AssetCheckSpec(
            f"consumer_lag_{identifier(consumer.name)}",
            asset=database.queue_key(consumer.queue),
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
    @takes_resource(database)
    def check_lag(
        context: dg.AssetCheckExecutionContext, pgque: PgqueResource
    ) -> Iterator[dg.AssetCheckResult]:
        keys = sorted(context.selected_asset_check_keys)
        try:
            with pgque.client() as client:
                results = [lag_result(client, key, consumer_of[key], max_lag) for key in keys]
        except ConnectionFailed as error:
            results = [
                dg.AssetCheckResult(
                    asset_key=key.asset_key,
                    check_name=key.name,
                    passed=False,
                    description=f"the lag is not known: {error}",
                )
                for key in keys
            ]
        yield from results

    return check_lag


def too_far_behind(lag: timedelta, max_lag: timedelta) -> str | None:
    """Returns how far a consumer is behind and, if that is too far, what to do."""
    if lag <= max_lag:
        return None
    return (
        f"{timedelta(seconds=round(lag.total_seconds()))} behind, {max_lag} allowed: check that "
        "its sensor is on, for what the sensor's last evaluation says that it waits, and that its "
        "runs succeed"
    )


def lag_result(
    client: Client, key: dg.AssetCheckKey, consumer: AssetConsumer, max_lag: timedelta
) -> dg.AssetCheckResult:
    """Evaluates the check on the lag of a consumer."""
    states = client.run(consumer_states([(consumer.queue, consumer.name)], Limits()))
    names = {Holder.of(state).name for state in states}
    infos = [info for info in client.consumers(consumer.queue) if info.name in names]
    if not infos:
        return dg.AssetCheckResult(
            asset_key=key.asset_key,
            check_name=key.name,
            passed=False,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"{consumer} is not registered. The asset's sensor or first run registers "
            "it; until then the queue keeps no events for it",
        )
    lag = max(consumer_lag(info) for info in infos)
    held = "; ".join(filter(None, map(why_held, states)))
    problem = held or too_far_behind(lag, max_lag)
    return dg.AssetCheckResult(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=problem is None,
        description=problem,
        metadata={
            "lag_seconds": lag.total_seconds(),
            "max_lag_seconds": max_lag.total_seconds(),
        },
    )

"""The checks on the queue of replicas, and the sensor that evaluates them without starting runs.

Dagster stores each of its events forever. So the result of a check is stored when it changes, and
again after a while, sooner if the check fails.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from ..checks.dead_letters import dead_letter_result
from ..checks.health import CHECKS, health_results
from ..checks.lag import lag_result
from ..client import Client, InvalidArgument, PgqueError, QueueNotFound
from ..client.replicas.source import estimates, expanded
from ..client.replicas.spec import TableSpec
from ..project.consumers import AssetConsumer, consumers_of_location
from ..project.database import Database
from ..project.keys import ROW_COUNT, identifier, switching_on
from ..project.queue_report import report_queues
from ..project.registration import who_creates
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import failing_by_its_reason
from .names import Target, source_key

Evaluate = Callable[[Client], Sequence[dg.AssetCheckResult]]

_INTERVAL = timedelta(minutes=1)
_SOON = timedelta(minutes=5)
_LATER = timedelta(hours=1)
_REFRESH = "Run dg utils refresh-defs-state, or restart dg dev"

# When each event was last stored, and the result of a check, by the key of the asset or check.
_Cursor = TypeAdapter(dict[str, tuple[datetime, str]])
_Event = dg.AssetObservation | dg.AssetCheckEvaluation


def evaluate_queue(database: Database, queue: str) -> Evaluate:
    """Returns how the checks on a queue and on its dead letters are evaluated."""
    key = database.queue_key(queue)

    def evaluate(client: Client) -> Sequence[dg.AssetCheckResult]:
        keys = [dg.AssetCheckKey(key, name) for name in CHECKS]
        return [
            *health_results(client, keys, {key: queue}, database),
            dead_letter_result(client, database, queue),
        ]

    return evaluate


def evaluate_lag(
    replicas: dg.AssetsDefinition, check: dg.AssetChecksDefinition, max_lag: timedelta
) -> Evaluate:
    """Returns how the check on the lag of replicas is evaluated."""
    (consumer,), (key,) = AssetConsumer.all_of(replicas), check.check_keys
    return lambda client: [lag_result(client, key, consumer, max_lag)]


def wildcard_check(
    database: Database,
    name: str,
    queue: str,
    names: Sequence[str | TableSpec],
    tables: Sequence[TableSpec],
    target: Target,
) -> dg.AssetChecksDefinition:
    """Returns the check `wildcard_tables` of replicas, on their queue.

    If they share the queue of others, their name is in the name of the check.
    """
    shown = ", ".join(spec.source for spec in map(TableSpec.of, names) if spec.is_pattern)

    @dg.asset_check(
        asset=database.queue_key(queue),
        name="wildcard_tables" if name == queue else f"wildcard_tables_{identifier(name)}",
        description=f"The tables that are replicated are those that {shown} stands for now.",
    )
    @takes_resource(database)
    def wildcard_tables(
        context: dg.AssetCheckExecutionContext, pgque: PgqueResource
    ) -> dg.AssetCheckResult:
        (key,) = context.selected_asset_check_keys
        with failing_by_its_reason(context.log), pgque.client() as client:
            return wildcard_result(client, key, names, tables, target)

    return wildcard_tables


def wildcard_result(
    client: Client,
    key: dg.AssetCheckKey,
    names: Sequence[str | TableSpec],
    tables: Sequence[TableSpec],
    target: Target,
) -> dg.AssetCheckResult:
    """Evaluates the check `wildcard_tables`."""
    try:
        found = expanded(client, names, target.check)
    except InvalidArgument as error:
        return dg.AssetCheckResult(
            passed=False, asset_key=key.asset_key, check_name=key.name, description=str(error)
        )
    now, known = ({spec.source for spec in each} for each in (found.specs, tables))
    problems = [
        *(f"{table} is not replicated. {_REFRESH}." for table in sorted(now - known)),
        *(
            f"{table} no longer has such a name. {_REFRESH}."
            for table in sorted(known - now - set(found.left_out))
        ),
        *(f"{table} cannot be replicated: {why}" for table, why in found.left_out.items()),
    ]
    shown = ", ".join(spec.source for spec in map(TableSpec.of, names) if spec.is_pattern)
    return dg.AssetCheckResult(
        passed=not problems,
        asset_key=key.asset_key,
        check_name=key.name,
        description=" ".join(problems) or f"{shown} matches the replicated tables.",
    )


def watch_sensor(
    database: Database,
    name: str,
    *,
    queue: str | None,
    tables: Sequence[TableSpec],
    evaluations: Sequence[Evaluate],
    status: dg.DefaultSensorStatus,
) -> dg.SensorDefinition:
    """Returns the sensor that observes a queue, unless others do, and evaluates the checks."""

    @dg.sensor(
        name=database.named(f"{identifier(name)}_watch"),
        minimum_interval_seconds=int(_INTERVAL.total_seconds()),
        default_status=status,
        description="Evaluates the checks on the queue each minute, and observes the queue, its "
        f"dead letters and the tables. It only reads.{switching_on(status)}",
    )
    @takes_resource(database)
    def watch(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.SensorResult | dg.SkipReason:
        try:
            with pgque.client() as client:
                found = [
                    *_evaluations(client, evaluations),
                    *_pages(context, client, database, queue),
                    *_sources(client, database, name, tables),
                ]
        except QueueNotFound:
            return dg.SkipReason(f"there is no queue yet: {who_creates(name, database)}")
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        events, cursor = _due(found, context.cursor)
        return dg.SensorResult(asset_events=events, cursor=cursor)

    return watch


def _due(found: Sequence[tuple[_Event, timedelta]], cursor: str | None) -> tuple[list[_Event], str]:
    """Returns the events to store now, each with the time until it is repeated."""
    try:
        stored = _Cursor.validate_json(cursor or "{}")
    except ValidationError:
        stored = {}
    now, due = datetime.now(UTC), []
    for event, repeated_after in found:
        key, result = event.asset_key.to_user_string(), ""
        if isinstance(event, dg.AssetCheckEvaluation):
            key, result = f"{key}:{event.check_name}", f"{event.passed} {event.severity.value}"
        last = stored.get(key)
        if last is None or last[1] != result or not (now - last[0] < repeated_after):
            due.append(event)
            stored[key] = now, result
    return due, _Cursor.dump_json(stored).decode()


def _evaluations(
    client: Client, evaluations: Sequence[Evaluate]
) -> Iterator[tuple[_Event, timedelta]]:
    for evaluate in evaluations:
        for result in evaluate(client):
            assert result.asset_key is not None and result.check_name is not None
            yield (
                dg.AssetCheckEvaluation(
                    result.asset_key,
                    result.check_name,
                    result.passed,
                    result.metadata,
                    severity=result.severity,
                    description=result.description,
                ),
                _LATER if result.passed else _SOON,
            )


def _pages(
    context: dg.SensorEvaluationContext, client: Client, database: Database, queue: str | None
) -> Iterator[tuple[_Event, timedelta]]:
    if queue is not None:
        found = report_queues(client, [queue], consumers_of_location(context), database)
        for key, metadata in found.items():
            yield dg.AssetObservation(key, metadata=metadata), _SOON


def _sources(
    client: Client, database: Database, name: str, tables: Sequence[TableSpec]
) -> Iterator[tuple[_Event, timedelta]]:
    found = client.run(estimates(name, [table.source for table in tables]))
    for table in tables:
        if table.source not in found:
            continue
        known = found[table.source]
        metadata: dict[str, Any] = {"pgque/bytes": known.size}
        if known.rows is not None:
            metadata[ROW_COUNT] = known.rows
        if known.captured_since is not None:
            metadata["pgque/captured_since"] = dg.MetadataValue.timestamp(known.captured_since)
        yield dg.AssetObservation(source_key(database, name, table), metadata=metadata), _LATER

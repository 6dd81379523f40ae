"""The sensor that watches the queue and the tables of replicas: it starts no runs.

Dagster stores each of its events for ever. So a check is stored when its result changes, and again
after a while, sooner if it fails.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import TypeAdapter, ValidationError

from ..checks.dead_letters import dead_letter_result
from ..checks.health import CHECKS, health_results
from ..checks.lag import lag_result
from ..client import Client, PgqueError
from ..client.source_tables import estimates
from ..client.table_spec import TableSpec
from ..project.consumers import AssetConsumer, consumers_of_location
from ..project.database import Database
from ..project.keys import ROW_COUNT, identifier, switching_on
from ..project.queue_report import report_queues
from ..project.resource import PgqueResource, takes_resource
from .names import source_key

Evaluate = Callable[[Client], Sequence[dg.AssetCheckResult]]

_INTERVAL = timedelta(minutes=1)
_SOON = timedelta(minutes=5)
_LATER = timedelta(hours=1)

# When each event was stored last, and the result of a check, by the key of the asset or check.
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


def watch_sensor(
    database: Database,
    name: str,
    *,
    queue: str | None,
    tables: Sequence[TableSpec],
    evaluations: Sequence[Evaluate],
    status: dg.DefaultSensorStatus,
) -> dg.SensorDefinition:
    """Returns the sensor.

    Args:
        database: the tables' database.
        name: of the replicas.
        queue: the queue to observe; None if something else does.
        tables: those whose sources are observed.
        evaluations: how the checks are evaluated.
        status: whether it is on from the start.
    """

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
        except PgqueError as error:
            context.log.warning(str(error))
            return dg.SkipReason(str(error))
        events, cursor = _due(found, context.cursor)
        return dg.SensorResult(asset_events=events, cursor=cursor)

    return watch


def _due(found: Sequence[tuple[_Event, timedelta]], cursor: str | None) -> tuple[list[_Event], str]:
    """Returns the events to store now, each of which comes with the time until it is repeated."""
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

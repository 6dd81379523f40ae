"""Asset checks that show the results of `pgque.queue_health()` in Dagster."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

import dagster as dg

from ..client import Client, HealthCheck
from ..project.database import DEFAULT, Database
from ..project.keys import identifier
from ..project.queue_report import consumer_lag, markdown_table
from ..project.registration import how_to_create
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import log_error_line

# The checks of `queue_health()`. Rows named `<check>:<consumer>` are combined into one check.
CHECKS: Mapping[str, str] = {
    "ticker_running": "The queue is ticked.",
    "rotation_health": "Its event tables rotate.",
    "left_table": "No event table stays full because a stale writer fills it.",
    "captured_table": "All changes of captured tables become events.",
    "dlq_health": "Dead letters do not accumulate.",
    "retry_backlog": "Due retries are delivered again.",
    "lease_health": "No open batch has an expired lease.",
    "consumer_lag": "No consumer delays rotation.",
    "consumer_asset": "Each consumer of an asset has one, in a code location that is alive.",
    "held_batch": "No batch is held after its last attempt.",
    "failing_batch": "No batch fails with temporary errors, such as an unreachable target.",
    "replica": "Each replica was compared with its table and is equal to it.",
    "restored_database": "The database is not a restored dump that still has to be adopted.",
    "log_rotation": "The logs of ticks and positions are compacted.",
}

_ORDER = ("ok", "warning", "critical")
_OF_CONSUMERS = ("consumer_asset", "consumer_lag", "held_batch", "failing_batch")

# How bad a row is: its status, then the lag of its consumer.
Badness = Callable[[HealthCheck], tuple[int, timedelta]]


def build_queue_health_checks(
    queues: Sequence[str],
    *,
    database: str = DEFAULT,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Builds a check on the assets of queues for each check of `pgque.queue_health()`.

    `critical` fails as an error, and `warning` as a warning. A problem of the whole
    database fails the check of each queue. All selected checks are evaluated in one step.

    Args:
        queues: the queues' names.
        database: the key of the PgqueResource whose database has the queues.
        automation_condition: when Dagster evaluates the checks automatically.

    Returns:
        The checks, for the Definitions. They need the resource of the database.
    """
    of = Database(database)
    specs = [
        dg.AssetCheckSpec(
            name,
            asset=of.queue_key(queue),
            description=description,
            automation_condition=automation_condition,
        )
        for queue in queues
        for name, description in CHECKS.items()
    ]
    queue_of = {of.queue_key(queue): queue for queue in queues}

    @dg.multi_asset_check(
        name=of.named(f"queue_health_{identifier(' '.join(queues))}"), specs=specs, can_subset=True
    )
    @takes_resource(of)
    def queue_health(
        context: dg.AssetCheckExecutionContext, pgque: PgqueResource
    ) -> Iterator[dg.AssetCheckResult]:
        keys = sorted(context.selected_asset_check_keys)
        with log_error_line(context.log), pgque.client() as client:
            results = health_results(client, keys, queue_of, of)
        yield from results

    return [queue_health] if queues else []


def health_results(
    client: Client,
    keys: Iterable[dg.AssetCheckKey],
    queue_of: Mapping[dg.AssetKey, str],
    database: Database,
) -> list[dg.AssetCheckResult]:
    """Evaluates checks of `build_queue_health_checks`."""
    found, consumers = client.health(), client.consumers()
    lags = {(info.queue, info.name): consumer_lag(info) for info in consumers}

    def badness(row: HealthCheck) -> tuple[int, timedelta]:
        consumer = (row.queue or "", row.check.partition(":")[2])
        return _ORDER.index(row.status), lags.get(consumer, timedelta(0))

    return [_result(key, queue_of[key.asset_key], found, badness, database) for key in keys]


def _result(
    key: dg.AssetCheckKey,
    queue: str,
    found: Iterable[HealthCheck],
    badness: Badness,
    database: Database,
) -> dg.AssetCheckResult:
    of_queue = [each for each in found if each.queue in (queue, None)]
    rows = [each for each in of_queue if each.check.partition(":")[0] == key.name]
    if all(each.queue is None for each in of_queue):
        detail = f"queue {queue} does not exist. {how_to_create(queue, database)}"
        status = "critical"
    else:
        worst = max(rows, key=badness, default=None)
        status, detail = (worst.status, worst.detail) if worst else ("ok", "nothing to check")
    consumers = [(each.check.partition(":")[2], each.status, each.detail) for each in rows]
    table = markdown_table(("consumer", "status", "detail"), consumers)
    return dg.AssetCheckResult(
        asset_key=key.asset_key,
        check_name=key.name,
        passed=status == "ok",
        severity=(
            dg.AssetCheckSeverity.ERROR if status == "critical" else dg.AssetCheckSeverity.WARN
        ),
        description=detail,
        metadata={
            "status": status,
            "what_to_do" if status != "ok" else "found": detail,
            **({"consumers": table} if key.name in _OF_CONSUMERS else {}),
        },
    )

"""Checks that show in Dagster what `pgque.queue_health()` finds."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import dagster as dg

from ..client import HealthCheck
from ..lineage import queue_key
from ..resources import PgqueResource
from .tables import table

# The checks of the SQL side; those named `consumer_lag:<consumer>` are one check here.
CHECKS: Mapping[str, str] = {
    "ticker_running": "The queue is ticked.",
    "rotation_health": "Its event tables rotate.",
    "dlq_health": "Dead letters do not pile up.",
    "retry_backlog": "Retries that are due come back.",
    "lease_health": "No open batch was left by its worker.",
    "consumer_lag": "No consumer holds up rotation.",
    "scheduler": "The database's queues are ticked.",
    "restored_database": "The database is no restored dump that was not adopted.",
    "xmin_horizon": "No transaction in the database holds back the removal of dead rows.",
}

_ORDER = ("ok", "unknown", "warning", "critical")


def build_queue_health_checks(
    queues: Sequence[str],
    *,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Makes a check on queues' assets for each health check of the SQL side.

    `critical` fails as an error, `warning` and `unknown` fail as warnings. What is wrong with the
    database as a whole fails the checks of each queue. All are evaluated in one step, with one
    query, or those of them that are selected.

    Args:
        queues: the queues' names.
        automation_condition: when Dagster evaluates the checks by itself.

    Returns:
        The checks, for the Definitions. They need the resource `pgque`.
    """
    specs = [
        dg.AssetCheckSpec(
            name,
            asset=queue_key(queue),
            description=description,
            automation_condition=automation_condition,
        )
        for queue in queues
        for name, description in CHECKS.items()
    ]
    queue_of = {queue_key(queue): queue for queue in queues}

    @dg.multi_asset_check(name=_step_name(queues), specs=specs, can_subset=True)
    def queue_health(
        context: dg.AssetCheckExecutionContext, pgque: PgqueResource
    ) -> Iterator[dg.AssetCheckResult]:
        found = pgque.health()
        for key in sorted(context.selected_asset_check_keys):
            yield _result(key, queue_of[key.asset_key], found)

    return [queue_health] if queues else []


def _result(key: dg.AssetCheckKey, queue: str, found: Iterable[HealthCheck]) -> dg.AssetCheckResult:
    of_queue = [each for each in found if each.queue in (queue, None)]
    rows = [each for each in of_queue if each.check.partition(":")[0] == key.name]
    if all(each.queue is None for each in of_queue):
        status, detail = "critical", f"queue {queue} does not exist: create it, or drop this check"
    else:
        worst = max(rows, key=lambda each: _ORDER.index(each.status), default=None)
        status, detail = (worst.status, worst.detail) if worst else ("ok", "nothing to check")
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
            **({"consumers": _consumers(rows)} if key.name == "consumer_lag" else {}),
        },
    )


def _consumers(rows: Iterable[HealthCheck]) -> dg.TableMetadataValue:
    return table(
        {"consumer": "string", "status": "string", "detail": "string"},
        [(each.check.partition(":")[2], each.status, each.detail) for each in rows],
    )


def _step_name(queues: Sequence[str]) -> str:
    """Names the step after the queues; names that become equal by that are told apart."""
    names = "\n".join(queues)
    digest = hashlib.sha256(names.encode()).hexdigest()[:8]
    return f"queue_health_{re.sub(r'[^A-Za-z0-9]', '_', names)[:40]}_{digest}"

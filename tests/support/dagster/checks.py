"""Runs asset checks as a schedule's job does, and looks into what they say."""

from collections.abc import Callable

import dagster as dg

from pgque_dagster import PgqueResource
from pgque_dagster.client import Client
from tests.support.queues.events import claim, publish

WARN = dg.AssetCheckSeverity.WARN
ERROR = dg.AssetCheckSeverity.ERROR


def give_up(
    client: Client,
    *payloads: str,
    reason: str = "no good",
    queue: str = "orders",
    consumer: str = "revenue",
) -> None:
    """Has a consumer give up all events of its next batch, after these are sent."""
    if payloads:
        publish(client, payloads, queue)
    batch = claim(client, queue, consumer)
    batch.dead_letter([event.msg_id for event in batch.events()], reason=reason)
    batch.ack()


def make_older(sql: Callable[[str], None], *, and_events: bool = False) -> None:
    """As if all ticks so far had been made an hour ago, and all events sent."""
    sql("update pgque.tick_log set tick_time = tick_time - interval '1 hour'")
    if and_events:
        sql("update pgque.event set ev_time = ev_time - interval '1 hour'")


def run(
    checks: list[dg.AssetChecksDefinition],
    url: str,
    instance: dg.DagsterInstance | None = None,
    only: list[dg.AssetCheckKey] | None = None,
) -> dict[str, dg.AssetCheckEvaluation]:
    """Runs the checks as a schedule's job does; returns their results by name."""
    keys = only or [key for check in checks for key in check.check_keys]
    definitions = dg.Definitions(
        asset_checks=checks,
        jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(*keys))],
        resources={"pgque": PgqueResource(url=url)},
    )
    result = definitions.resolve_job_def("checks").execute_in_process(
        instance=instance, raise_on_error=True
    )
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def rows(evaluation: dg.AssetCheckEvaluation, name: str) -> list[dict[str, str]]:
    """The rows of a table among the metadata."""
    lines = str(evaluation.metadata[name].value).splitlines()
    columns, _, *found = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return [dict(zip(columns, cells, strict=True)) for cells in found]

"""The check warns of a consumer whose asset was renamed, and of no other consumer."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from pgque_dagster.checks.orphans import consumers_without_asset
from pgque_dagster.client import Client, HealthCheck, Limits
from pgque_dagster.client.holder import Holder
from pgque_dagster.project.consumers import AssetConsumer
from tests.dagster.location import execute
from tests.support.events import claim, make_queue, publish, tick

LOCATION = """
import dagster as dg
from pgque_dagster import PgqueResource, build_queue_assets, build_queue_health_checks, pgque_asset

@pgque_asset(queue="orders", {options})
def sales(batch):
    return None

checks = build_queue_health_checks(["orders"])
defs = dg.Definitions(
    assets=[*build_queue_assets("orders"), sales],
    asset_checks=checks,
    jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(*checks))],
    executor=dg.in_process_executor,
    resources={{"pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")), "pyspark": None}},
)
"""
Pass = Callable[[str], None]


@pytest.fixture
def let_time_pass(sql: Callable[[str], None]) -> Pass:
    """Moves the last tick and the last call of every consumer into the past by an interval."""

    def let_time_pass(time: str) -> None:
        sql(f"update pgque.tick_log set tick_time = tick_time - interval '{time}'")
        sql(f"update pgque.position_log set sub_active = sub_active - interval '{time}'")

    return let_time_pass


def found(client: Client, *of_assets: str) -> list[HealthCheck]:
    """Returns the findings if the code location's assets have these consumers of queue orders."""
    consumers = [AssetConsumer("orders", name, (dg.AssetKey(name),)) for name in of_assets]
    return consumers_without_asset(client.health(), client.consumers(), consumers)


def test_the_consumer_of_an_asset_that_was_renamed_is_a_warning_until_it_is_named(
    client: Client,
    let_time_pass: Pass,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGQUE_URL", client.url)
    let_time_pass("2 hours")
    publish(client, ["a", "b"])

    def evaluate(name: str, options: str) -> dg.AssetCheckEvaluation:
        run = execute(instance, tmp_path / name, LOCATION.format(options=options), "checks")
        kind = dg.DagsterEventType.ASSET_CHECK_EVALUATION
        checks = [event for event in run.all_events if event.event_type == kind]
        found = [event.asset_check_evaluation_data for event in checks]
        return next(each for each in found if each.check_name == "consumer_assets")

    renamed = evaluate("renamed.py", "")

    assert (renamed.passed, renamed.severity) == (False, dg.AssetCheckSeverity.WARN)
    for words in (
        "consumer revenue was last active 2:00:",
        "2 events wait for it",
        "set consumer='revenue' on the asset",
        "`pgque unregister orders revenue`",
    ):
        assert words in str(renamed.metadata["what_to_do"].value)
    assert evaluate("named.py", 'consumer="revenue"').passed


def test_a_consumer_outside_dagster_is_in_order_while_it_consumes(
    client: Client, let_time_pass: Pass
) -> None:
    let_time_pass("2 hours")
    publish(client, ["a"])
    assert [each.check for each in found(client)] == ["consumer_assets:revenue"]
    # A run outside of a code location knows no assets.
    assert consumers_without_asset(client.health(), client.consumers(), None) == []

    client.next_batch("orders", "revenue")
    assert found(client) == []
    # Nor is one for which nothing waits.
    claim(client).ack()
    let_time_pass("2 days")
    assert found(client) == []


def test_a_consumer_that_holds_up_no_rotation_is_in_order(
    client: Client, sql: Callable[[str], None], let_time_pass: Pass
) -> None:
    sql("update pgque.queue set queue_rotation_period = '7 days'")
    let_time_pass("1 day")
    publish(client, ["a"])

    assert found(client) == []


def test_the_parts_of_a_shared_consumer_belong_to_its_asset(
    client: Client, let_time_pass: Pass
) -> None:
    client.run(Holder("orders", "revenue", "1").register_subconsumer())
    publish(client, ["a"])
    second = timedelta(seconds=1)
    died = {"owner": "a run that died", "ttl": second, "limits": Limits()}
    Holder("orders", "revenue", "1").claim(client, **died)  # type: ignore[arg-type]
    publish(client, ["b"])
    let_time_pass("2 hours")
    tick(client)

    assert found(client, "revenue") == []
    assert {each.check for each in found(client)} == {
        "consumer_assets:revenue",
        "consumer_assets:revenue.1",
    }


def test_consumers_of_other_queues_are_told_apart(client: Client, let_time_pass: Pass) -> None:
    make_queue(client, "returns")
    let_time_pass("2 hours")
    publish(client, ["a"])
    tick(client, "returns")

    assert found(client, "revenue") == [each for each in found(client) if each.queue == "returns"]
    assert [each.queue for each in found(client, "revenue")] == ["returns"]

"""The check warns of a consumer whose asset was renamed, and of no other consumer."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from pgque_dagster.checks.orphans import consumers_without_asset
from pgque_dagster.client import Client, ConsumerInfo, HealthCheck, Limits
from pgque_dagster.client.cooperative import claim_shared, register_subconsumer
from pgque_dagster.consumers import Consumer
from tests.support.events import make_queue, publish, tick

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
    resources={{"pgque": PgqueResource(url=dg.EnvVar("PGQUE_URL")), "pyspark": None}},
)
"""


@pytest.fixture
def let_time_pass(sql: Callable[[str], None]) -> Callable[[str], None]:
    """Moves the last tick and the last call of every consumer into the past by an interval."""

    def let_time_pass(time: str) -> None:
        sql(f"update pgque.tick_log set tick_time = tick_time - interval '{time}'")
        sql(f"update pgque.position_log set sub_active = sub_active - interval '{time}'")

    return let_time_pass


def evaluate(folder: Path, url: str, options: str) -> dg.AssetCheckEvaluation:
    """Has Dagster load a code location with the asset `sales` and run its checks; returns one."""
    (folder / "shop.py").write_text(LOCATION.format(options=options))
    (folder / "home").mkdir(exist_ok=True)
    dagster = Path(sys.executable).with_name("dagster")
    subprocess.run(
        [dagster, "job", "execute", "-f", "shop.py", "-j", "checks"],
        cwd=folder,
        env={**os.environ, "PGQUE_URL": url, "DAGSTER_HOME": str(folder / "home")},
        check=True,
        capture_output=True,
        timeout=180,
    )
    with dg.DagsterInstance.from_config(str(folder / "home")) as instance:
        (run, *_) = instance.get_runs(limit=1)
        events = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    found = [event.dagster_event.asset_check_evaluation_data for event in events]  # type: ignore[union-attr]
    return next(each for each in found if each.check_name == "consumer_assets")


def found(client: Client, *of_assets: str) -> list[HealthCheck]:
    """Returns the findings if the code location's assets have these consumers of queue orders."""
    consumers = [Consumer("orders", name, (dg.AssetKey(name),)) for name in of_assets]
    return consumers_without_asset(client.health(), client.consumers(), consumers)


def test_the_consumer_of_an_asset_that_was_renamed_is_a_warning_until_it_is_named(
    client: Client, let_time_pass: Callable[[str], None], tmp_path: Path
) -> None:
    let_time_pass("2 hours")
    publish(client, ["a", "b"])

    renamed = evaluate(tmp_path, client.url, "")
    named = evaluate(tmp_path, client.url, 'consumer="revenue"')

    assert (renamed.passed, renamed.severity) == (False, dg.AssetCheckSeverity.WARN)
    for words in (
        "consumer revenue was last active 2:00:",
        "2 events wait for it",
        "set consumer='revenue' on the asset",
        "`pgque unregister orders revenue`",
    ):
        assert words in str(renamed.metadata["what_to_do"].value)
    assert named.passed


def test_a_consumer_outside_dagster_is_in_order_while_it_consumes(
    client: Client, let_time_pass: Callable[[str], None]
) -> None:
    let_time_pass("2 hours")
    publish(client, ["a"])
    client.next_batch("orders", "revenue")

    assert found(client) == []


def test_a_consumer_for_which_nothing_waits_is_in_order(
    client: Client, let_time_pass: Callable[[str], None]
) -> None:
    publish(client, ["a"])
    batch = client.claim("orders", "revenue", owner="a test")
    assert batch is not None
    batch.ack()
    let_time_pass("2 days")

    assert found(client) == []


def test_a_consumer_that_holds_up_no_rotation_is_in_order(
    client: Client, sql: Callable[[str], None], let_time_pass: Callable[[str], None]
) -> None:
    sql("update pgque.queue set queue_rotation_period = '7 days'")
    let_time_pass("1 day")
    publish(client, ["a"])

    assert found(client) == []


def test_the_parts_of_a_shared_consumer_belong_to_its_asset(
    client: Client, let_time_pass: Callable[[str], None]
) -> None:
    client.run(register_subconsumer("orders", "revenue", "1"))
    publish(client, ["a"])
    claim_shared(
        client,
        "orders",
        "revenue",
        "1",
        owner="a run that died",
        ttl=timedelta(seconds=1),
        limits=Limits(),
    )
    publish(client, ["b"])
    let_time_pass("2 hours")
    tick(client)

    assert found(client, "revenue") == []
    assert {each.check for each in found(client)} == {
        "consumer_assets:revenue",
        "consumer_assets:revenue.1",
    }


def test_replays_and_consumers_of_other_queues_are_told_apart(
    client: Client, let_time_pass: Callable[[str], None]
) -> None:
    client.register_consumer("orders", "replay-1a2b3c4d")
    make_queue(client, "returns")
    let_time_pass("2 hours")
    publish(client, ["a"])
    tick(client, "returns")

    assert found(client, "revenue") == [each for each in found(client) if each.queue == "returns"]
    assert [each.queue for each in found(client, "revenue")] == ["returns"]


def test_a_run_outside_of_a_code_location_finds_nothing(
    client: Client, let_time_pass: Callable[[str], None]
) -> None:
    let_time_pass("2 hours")
    publish(client, ["a"])
    registered: list[ConsumerInfo] = client.consumers()

    assert registered[0].last_seen > timedelta(hours=1)
    assert consumers_without_asset(client.health(), registered, None) == []

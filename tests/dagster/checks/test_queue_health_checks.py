"""The checks on a queue's health, against a real queue, and what all checks have in common."""

from collections.abc import Callable
from datetime import timedelta

import dagster as dg
import pytest

from pgque_dagster import (
    PgqueResource,
    build_consumer_lag_checks,
    build_dead_letter_checks,
    build_queue_assets,
    build_queue_health_checks,
    queue_key,
)
from pgque_dagster.checks.health import CHECKS
from pgque_dagster.client import Client
from tests.support.dagster.assets import revenue
from tests.support.dagster.checks import ERROR, WARN, make_older, rows, run
from tests.support.queues.events import claim, make_queue, publish, tick
from tests.support.runner.versions import is_older

UNUSED = {"pgque": PgqueResource(url="unused"), "pyspark": None}


def health(client: Client, queue: str = "orders") -> dict[str, dg.AssetCheckEvaluation]:
    return run(build_queue_health_checks([queue]), client.url)


def test_a_healthy_queue_passes_all_checks_of_the_sql_side(client: Client) -> None:
    make_queue(client, "returns")
    tick(client)
    tick(client, "returns")
    client.pause_queue("returns")

    results = health(client)

    in_sql = {check.check.partition(":")[0] for check in client.health()}
    # SQL names tables, assets and replicas only where there are some, or something is wrong.
    only_wrong = {"captured_table", "consumer_asset", "left_table", "replica"}
    assert set(results) == set(CHECKS) == in_sql | only_wrong
    assert [name for name, result in results.items() if not result.passed] == []
    assert {result.asset_key for result in results.values()} == {queue_key("orders")}
    # One check can run by itself.
    both = build_queue_health_checks(["orders", "returns"])
    key = dg.AssetCheckKey(queue_key("returns"), "ticker_running")
    (alone,) = run(both, client.url, only=[key]).values()
    assert (alone.asset_check_key, alone.passed) == (key, False)


def test_a_finding_of_sql_is_one_in_dagster_with_what_to_do(
    client: Client, sql: Callable[[str], None]
) -> None:
    client.pause_queue("orders")
    paused = health(client)["ticker_running"]
    client.resume_queue("orders")
    make_older(sql)
    stopped = health(client)["ticker_running"]

    assert (paused.passed, paused.severity) == (False, WARN)
    assert "ticker_paused" in str(paused.metadata["what_to_do"].value)
    assert (stopped.passed, stopped.severity) == (False, ERROR)


def test_the_worst_consumer_decides_and_all_are_shown(
    client: Client, sql: Callable[[str], None]
) -> None:
    sql("update pgque.queue set queue_rotation_period = '30 minutes'")
    publish(client, ["a"])
    make_older(sql, and_events=True)
    client.register_consumer("orders", "audit")

    result = health(client)["consumer_lag"]

    assert (result.passed, result.severity) == (False, ERROR)
    assert {(row["consumer"], row["status"]) for row in rows(result, "consumers")} == {
        ("audit", "ok"),
        ("revenue", "critical"),
    }


def test_of_equally_bad_rows_the_consumer_farthest_behind_is_the_headline(
    client: Client, sql: Callable[[str], None]
) -> None:
    sql("update pgque.queue set queue_rotation_period = '1 day'")
    for consumer in ("audit", "zeta"):
        client.register_consumer("orders", consumer)
    publish(client, ["a"])
    make_older(sql, and_events=True)
    for consumer in ("audit", "zeta"):
        claim(client, consumer=consumer).ack()

    result = health(client)["consumer_lag"]

    assert {row["status"] for row in rows(result, "consumers")} == {"ok"}
    assert str(result.description).startswith("at most 01:00:0")


def test_the_health_of_a_queue_that_does_not_exist_is_an_error(client: Client) -> None:
    results = health(client, "nosuch")

    assert {(each.passed, each.severity) for each in results.values()} == {(False, ERROR)}
    told = str(results["dlq_health"].description)
    assert "nosuch does not exist" in told
    assert "the sensor nosuch_capture creates it once it is on" in told


@pytest.mark.skipif(
    is_older("dagster", (1, 13)), reason="Dagster 1.12 has no checks on names with a dot"
)
def test_health_checks_of_queues_with_like_names_load_together() -> None:
    queues = ("a.b", "a-b", "a_b")

    definitions = dg.Definitions(
        assets=[spec for queue in queues for spec in build_queue_assets(queue)],
        asset_checks=[check for queue in queues for check in build_queue_health_checks([queue])],
        resources=UNUSED,
    )
    keys = definitions.resolve_asset_graph().asset_check_keys

    assert definitions.resolve_all_job_defs()
    assert len(keys) == len(queues) * len(CHECKS)


def test_an_automation_condition_has_all_checks_evaluated(instance: dg.DagsterInstance) -> None:
    idle = ~dg.AutomationCondition.in_progress()
    checks = [
        *build_dead_letter_checks(["orders"], automation_condition=idle),
        *build_consumer_lag_checks([revenue], max_lag=timedelta(1), automation_condition=idle),
        *build_queue_health_checks(["orders"], automation_condition=idle),
    ]
    assets = [*build_queue_assets("orders"), revenue]
    definitions = dg.Definitions(assets=assets, asset_checks=checks, resources=UNUSED)

    result = dg.evaluate_automation_conditions(definitions, instance)

    requested = {each.key for each in result.results if not each.true_subset.is_empty}
    assert requested == {key for check in checks for key in check.check_keys}

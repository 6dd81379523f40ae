"""The checks on a queue's health, against a real queue."""

from collections.abc import Callable

import dagster as dg
import pytest

from pgque_dagster import PgqueResource, build_queue_assets, build_queue_health_checks, queue_key
from pgque_dagster.checks.health import CHECKS
from pgque_dagster.client import Client
from pgque_dagster.client.calls.states import hold
from tests.support.checks import ERROR, WARN, make_older, rows, run
from tests.support.events import claim, make_queue, publish, tick
from tests.support.versions import is_older


def test_there_is_a_check_for_each_one_of_the_sql_side(client: Client) -> None:
    in_sql = {check.check.partition(":")[0] for check in client.health()}

    # SQL names a left table only where there is one; idle consumers are looked for in Python.
    assert set(CHECKS) == in_sql | {"left_table", "consumer_assets"}


def test_a_healthy_queue_passes_all_checks(client: Client) -> None:
    tick(client)

    results = run(build_queue_health_checks(["orders"]), client.url)

    assert set(results) == set(CHECKS)
    assert [name for name, result in results.items() if not result.passed] == []
    assert {result.asset_key for result in results.values()} == {queue_key("orders")}


def test_a_warning_of_sql_is_one_in_dagster_with_what_to_do(client: Client) -> None:
    client.pause_queue("orders")

    result = run(build_queue_health_checks(["orders"]), client.url)["ticker_running"]

    assert (result.passed, result.severity) == (False, WARN)
    assert "ticker_paused" in str(result.metadata["what_to_do"].value)


def test_what_is_critical_in_sql_is_an_error_in_dagster(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)

    result = run(build_queue_health_checks(["orders"]), client.url)["ticker_running"]

    assert (result.passed, result.severity) == (False, ERROR)


def test_the_worst_consumer_decides_and_all_are_shown(
    client: Client, sql: Callable[[str], None]
) -> None:
    sql("update pgque.queue set queue_rotation_period = '30 minutes'")
    make_older(sql)
    publish(client, ["a"])
    client.register_consumer("orders", "audit")

    result = run(build_queue_health_checks(["orders"]), client.url)["consumer_lag"]

    assert (result.passed, result.severity) == (False, ERROR)
    assert {(row["consumer"], row["status"]) for row in rows(result, "consumers")} == {
        ("audit", "ok"),
        ("revenue", "critical"),
    }


def test_of_equally_bad_rows_the_consumer_farthest_behind_is_the_headline(
    client: Client, sql: Callable[[str], None]
) -> None:
    sql("update pgque.queue set queue_rotation_period = '1 day'")
    client.register_consumer("orders", "audit")
    client.register_consumer("orders", "zeta")
    make_older(sql)
    publish(client, ["a"])
    for consumer in ("audit", "zeta"):
        claim(client, consumer=consumer).ack()

    result = run(build_queue_health_checks(["orders"]), client.url)["consumer_lag"]

    assert {row["status"] for row in rows(result, "consumers")} == {"ok"}
    assert str(result.description).startswith("01:00:0")


def test_a_held_batch_is_an_error_with_its_consumer_and_the_reason(client: Client) -> None:
    publish(client, ["a"])
    client.register_consumer("orders", "audit")
    batch = claim(client)
    batch.release()
    client.run(hold(batch.batch_id, batch.lease.epoch, "after 3 attempts; correct the cause"))

    result = run(build_queue_health_checks(["orders"]), client.url)["held_batch"]

    assert (result.passed, result.severity) == (False, ERROR)
    assert f'batch {batch.batch_id} of "revenue" is held since' in str(result.description)
    assert "after 3 attempts; correct the cause" in str(result.metadata["what_to_do"].value)


def test_other_queues_stay_out(client: Client) -> None:
    make_queue(client, "returns")
    tick(client)
    client.pause_queue("returns")

    assert run(build_queue_health_checks(["orders"]), client.url)["ticker_running"].passed


def test_one_health_check_can_run_by_itself(client: Client) -> None:
    checks = build_queue_health_checks(["orders", "returns"])
    make_queue(client, "returns")

    results = run(checks, client.url, only=[dg.AssetCheckKey(queue_key("returns"), "dlq_health")])

    assert list(results) == ["dlq_health"]


def test_the_health_of_a_queue_that_does_not_exist_is_an_error(client: Client) -> None:
    results = run(build_queue_health_checks(["nosuch"]), client.url)

    assert {(each.passed, each.severity) for each in results.values()} == {(False, ERROR)}
    assert "nosuch does not exist" in str(results["dlq_health"].description)


@pytest.mark.skipif(
    is_older("dagster", (1, 13)),
    reason="Dagster 1.12 has no checks on names with a dot",
)
def test_health_checks_of_queues_with_like_names_load_together() -> None:
    queues = ("a.b", "a-b", "a_b")

    definitions = dg.Definitions(
        assets=[spec for queue in queues for spec in build_queue_assets(queue)],
        asset_checks=[check for queue in queues for check in build_queue_health_checks([queue])],
        resources={"pgque": PgqueResource(url="unused")},
    )
    keys = definitions.resolve_asset_graph().asset_check_keys

    names = {key.name for key in build_queue_health_checks(["a.b"])[0].check_keys}
    assert definitions.resolve_all_job_defs()
    assert len(keys) == len(queues) * len(names)

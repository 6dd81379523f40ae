"""The check on a consumer's lag, against a real queue."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import build_consumer_lag_checks, pgque_asset, queue_key
from pgque_dagster.client import Client
from pgque_dagster.client.batch import hold
from tests.support.dagster.assets import revenue
from tests.support.dagster.checks import ERROR, WARN, make_older, run
from tests.support.queues.events import claim, publish, tick

Sql = Callable[[str], None]
MINUTE, HALF_AN_HOUR, TWO_HOURS = (timedelta(minutes=number) for number in (1, 30, 120))


def lag_of(client: Client, **options: Any) -> dg.AssetCheckEvaluation:
    options = {"max_lag": timedelta(hours=1), **options}
    (result,) = run(build_consumer_lag_checks([revenue], **options), client.url).values()
    return result


def verdict(result: dg.AssetCheckEvaluation) -> tuple[bool, dg.AssetCheckSeverity]:
    return result.passed, result.severity


def test_a_consumer_within_its_budget_passes(client: Client) -> None:
    publish(client, ["a"])

    result = lag_of(client)

    assert result.passed
    assert result.asset_check_key == dg.AssetCheckKey(queue_key("orders"), "consumer_lag_revenue")
    assert 0 < float(str(result.metadata["lag_seconds"].value)) < 3600


def test_a_consumer_that_nothing_waits_for_is_not_behind_however_old_its_tick(
    client: Client, sql: Sql
) -> None:
    make_older(sql)
    tick(client)
    result = lag_of(client, max_lag=MINUTE)
    # An event of a transaction that was rolled back is not waited for.
    with client.transaction() as db, db.transaction(force_rollback=True):
        db.execute("select pgque.send('orders', 'undone'::text)")
    make_older(sql)
    undone = lag_of(client, max_lag=MINUTE)
    tick(client)

    assert result.passed
    assert result.metadata["lag_seconds"].value == 0.0
    assert undone.passed
    assert lag_of(client, max_lag=MINUTE).passed, "also after a tick"


def test_a_consumer_behind_its_budget_fails_and_is_told_what_to_do(
    client: Client, sql: Sql
) -> None:
    make_older(sql)
    publish(client, ["a"])
    young = lag_of(client, max_lag=MINUTE)
    make_older(sql, and_events=True)

    assert young.passed, "the queue was quiet before"
    failed = lag_of(client, max_lag=HALF_AN_HOUR)

    assert lag_of(client, max_lag=TWO_HOURS).passed
    assert verdict(failed) == (False, ERROR)
    assert "0:30:00 allowed: check that its sensor is on" in str(failed.description)


def test_events_that_wait_for_a_tick_on_a_paused_queue_are_behind(client: Client, sql: Sql) -> None:
    client.pause_queue("orders")
    client.send("orders", "a")
    make_older(sql)
    sql("update pgque.event_1 set ev_time = ev_time - interval '40 minutes'")

    young = lag_of(client, max_lag=timedelta(minutes=50))
    old = lag_of(client, max_lag=HALF_AN_HOUR)

    assert young.passed
    assert verdict(old) == (False, ERROR)
    assert "0:40:0" in str(old.description)


def test_a_held_batch_fails_however_short_the_lag_is(client: Client) -> None:
    publish(client, ["a"])
    batch = claim(client)
    batch.release()
    client.run(hold(batch.batch_id, batch.lease.epoch, "after 3 attempts; correct the cause"))

    held = lag_of(client)

    assert verdict(held) == (False, ERROR)
    assert held.description == (
        f"batch {batch.batch_id} of orders/revenue is held after 3 attempts; correct the cause"
    )


def test_a_batch_that_a_part_of_a_shared_consumer_holds_counts_as_behind(
    client: Client, sql: Sql
) -> None:
    sql("select pgque.register_subconsumer('orders', 'revenue', 'one', true)")
    publish(client, ["a"])
    make_older(sql, and_events=True)
    sql("select pgque.next_batch('orders', 'revenue', 'one')")

    result = lag_of(client, max_lag=HALF_AN_HOUR)

    assert not result.passed


def test_a_consumer_stuck_on_events_that_are_delivered_again_is_behind(
    client: Client, sql: Sql
) -> None:
    ids = publish(client, ["a"])
    batch = claim(client)
    batch.nack(ids, retry_after=timedelta(0))
    batch.ack()
    client.maint()
    tick(client)
    claim(client).release()
    make_older(sql)

    assert not lag_of(client, max_lag=MINUTE).passed


def test_a_consumer_that_is_not_registered_is_a_warning(client: Client) -> None:
    client.unregister_consumer("orders", "revenue", skip=True)

    result = lag_of(client)

    assert verdict(result) == (False, WARN)
    assert "not registered" in str(result.description)


def test_consumers_whose_names_differ_in_signs_alone_have_checks_of_their_own() -> None:
    assets = [
        pgque_asset(queue="orders", consumer=consumer, name=f"asset_{number}")(lambda batch: 1)
        for number, consumer in enumerate(("été-1", "ete_1", "ete-1"))
    ]

    (checks,) = build_consumer_lag_checks(assets, max_lag=timedelta(1))

    assert len({key.name for key in checks.check_keys}) == 3


def test_a_limit_that_is_not_positive_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="must be more than 0"):
        build_consumer_lag_checks([revenue], max_lag=timedelta(0))


def test_an_asset_that_consumes_nothing_has_no_lag() -> None:
    plain = dg.asset(name="plain")(lambda: None)

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="consumes no queue"):
        build_consumer_lag_checks([plain], max_lag=timedelta(1))

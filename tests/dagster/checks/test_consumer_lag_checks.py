"""The check on a consumer's lag, against a real queue."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import build_consumer_lag_checks, pgque_asset, queue_key
from pgque_dagster.client import Client
from pgque_dagster.client.batch import hold
from tests.support.checks import ERROR, WARN, make_older, revenue, run
from tests.support.events import claim, publish, tick

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
    assert result.metadata["pending_events"].value == 1
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
    assert lag_of(client, max_lag=MINUTE, max_pending_events=0).passed, "also after a tick"


def test_a_consumer_behind_its_budget_fails_and_is_told_what_to_do(
    client: Client, sql: Sql
) -> None:
    make_older(sql)
    publish(client, ["a"])

    failed = lag_of(client, max_lag=HALF_AN_HOUR)

    assert verdict(lag_of(client, max_lag=TWO_HOURS, warn_lag=HALF_AN_HOUR)) == (False, WARN)
    assert verdict(failed) == (False, ERROR)
    assert "0:30:00 allowed" in str(failed.description)
    told = str(failed.metadata["what_to_do"].value)
    assert "check that the sensor of revenue runs" in told


def test_events_that_wait_for_a_tick_on_a_paused_queue_are_behind(client: Client, sql: Sql) -> None:
    client.pause_queue("orders")
    client.send("orders", "a")
    make_older(sql)
    sql("update pgque.event_1 set ev_time = ev_time - interval '40 minutes'")

    young = lag_of(client, max_lag=timedelta(minutes=50))
    old = lag_of(client, max_lag=HALF_AN_HOUR)

    assert young.passed and young.metadata["pending_events"].value == 1
    assert verdict(old) == (False, ERROR)
    assert "0:40:0" in str(old.description)
    assert "resume queue orders if it is paused" in str(old.metadata["what_to_do"].value)


def test_events_that_wait_may_be_too_many_whatever_their_age(client: Client) -> None:
    publish(client, ["a", "b"])

    assert lag_of(client, max_pending_events=1).description == "2 events wait, 1 allowed"
    assert lag_of(client, max_pending_events=2).passed


def test_what_to_do_names_who_works_on_the_batch_or_who_left_it_or_why_it_is_held(
    client: Client,
) -> None:
    publish(client, ["a"])
    batch = claim(client)
    at_work = lag_of(client, max_pending_events=0)
    batch.release()
    left = lag_of(client, max_pending_events=0)
    client.run(hold(batch.batch_id, batch.lease.epoch, "after 3 attempts; correct the cause"))
    held = lag_of(client, severity=WARN)

    assert '"a test"' in str(at_work.metadata["what_to_do"].value)
    assert "nobody works on it" in str(left.metadata["what_to_do"].value)
    assert verdict(held) == (False, ERROR), "however short the lag is"
    assert held.description == (
        f"batch {batch.batch_id} of orders/revenue is held after 3 attempts; correct the cause"
    )


def test_a_batch_that_a_part_of_a_shared_consumer_holds_counts_as_behind(
    client: Client, sql: Sql
) -> None:
    sql("select pgque.register_subconsumer('orders', 'revenue', 'one', true)")
    make_older(sql)
    publish(client, ["a"])
    sql("select pgque.next_batch('orders', 'revenue', 'one')")

    result = lag_of(client, max_lag=HALF_AN_HOUR)

    assert not result.passed
    assert result.metadata["pending_events"].value == 1


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
    client.unregister_consumer("orders", "revenue")

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


@pytest.mark.parametrize(
    "options",
    [
        {"max_lag": timedelta(0)},
        {"max_lag": timedelta(1), "warn_lag": timedelta(1)},
        {"max_lag": timedelta(1), "warn_lag": timedelta(0)},
        {"max_lag": timedelta(1), "max_pending_events": -1},
    ],
)
def test_a_lag_budget_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        build_consumer_lag_checks([revenue], **options)


def test_an_asset_that_consumes_nothing_has_no_lag() -> None:
    plain = dg.asset(name="plain")(lambda: None)

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="consumes no queue"):
        build_consumer_lag_checks([plain], max_lag=timedelta(1))

"""The check on a consumer's lag, against a real queue."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import SparkBatch, build_consumer_lag_checks, pgque_asset, queue_key
from pgque_dagster.client import Client
from pgque_dagster.client.calls.states import hold
from tests.support.checks import ERROR, WARN, make_older, revenue, run
from tests.support.events import claim, publish, tick


def lag_of(client: Client, **options: Any) -> dg.AssetCheckEvaluation:
    options = {"max_lag": timedelta(hours=1), **options}
    (result,) = run(build_consumer_lag_checks([revenue], **options), client.url).values()
    return result


def test_a_consumer_within_its_budget_passes(client: Client) -> None:
    publish(client, ["a"])

    result = lag_of(client)

    assert result.passed
    assert result.asset_check_key == dg.AssetCheckKey(queue_key("orders"), "consumer_lag_revenue")
    assert result.metadata["pending_events"].value == 1
    assert 0 < float(str(result.metadata["lag_seconds"].value)) < 3600


def test_a_consumer_that_nothing_waits_for_is_not_behind_however_old_its_tick(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)
    tick(client)

    result = lag_of(client, max_lag=timedelta(minutes=1))

    assert result.passed
    assert result.metadata["lag_seconds"].value == 0.0


def test_a_consumer_behind_its_budget_fails_and_is_told_what_to_do(
    client: Client, sql: Callable[[str], None]
) -> None:
    make_older(sql)
    publish(client, ["a"])

    warned = lag_of(client, max_lag=timedelta(hours=2), warn_lag=timedelta(minutes=30))
    failed = lag_of(client, max_lag=timedelta(minutes=30))

    assert (warned.passed, warned.severity) == (False, WARN)
    assert (failed.passed, failed.severity) == (False, ERROR)
    assert "0:30:00 allowed" in str(failed.description)
    assert "check that the sensor or worker of revenue runs" in str(
        failed.metadata["what_to_do"].value
    )


def test_events_that_wait_for_a_tick_on_a_paused_queue_are_behind(
    client: Client, sql: Callable[[str], None]
) -> None:
    client.pause_queue("orders")
    client.send("orders", "a")
    make_older(sql)
    sql("update pgque.event_1 set ev_time = ev_time - interval '40 minutes'")

    young = lag_of(client, max_lag=timedelta(minutes=50))
    old = lag_of(client, max_lag=timedelta(minutes=30))

    assert young.passed and young.metadata["pending_events"].value == 1
    assert (old.passed, old.severity) == (False, ERROR)
    assert "0:40:0" in str(old.description)
    assert "resume queue orders if it is paused" in str(old.metadata["what_to_do"].value)


def test_an_event_of_a_transaction_that_was_rolled_back_is_not_waited_for(
    client: Client, sql: Callable[[str], None]
) -> None:
    with client.transaction() as db, db.transaction(force_rollback=True):
        db.execute("select pgque.send('orders', 'undone'::text)")
    make_older(sql)

    assert lag_of(client, max_lag=timedelta(minutes=1)).passed


def test_events_that_wait_may_be_too_many_whatever_their_age(client: Client) -> None:
    publish(client, ["a", "b"])

    failing = lag_of(client, max_pending_events=1)
    passing = lag_of(client, max_pending_events=2)

    assert failing.description == "2 events wait, 1 allowed"
    assert passing.passed


def test_what_to_do_names_who_works_on_the_batch_or_who_left_it(client: Client) -> None:
    publish(client, ["a"])
    batch = claim(client)
    held = lag_of(client, max_pending_events=0)
    batch.release()
    left = lag_of(client, max_pending_events=0)

    assert '"a test"' in str(held.metadata["what_to_do"].value)
    assert "nobody works on it" in str(left.metadata["what_to_do"].value)


def test_a_batch_that_a_part_of_a_shared_consumer_holds_counts_as_behind(
    client: Client, sql: Callable[[str], None]
) -> None:
    sql("select pgque.register_subconsumer('orders', 'revenue', 'one', true)")
    make_older(sql)
    publish(client, ["a"])
    sql("select pgque.next_batch('orders', 'revenue', 'one')")

    result = lag_of(client, max_lag=timedelta(minutes=30))

    assert not result.passed
    assert result.metadata["pending_events"].value == 1


def test_a_held_batch_is_an_error_with_the_reason_however_short_the_lag(client: Client) -> None:
    publish(client, ["a"])
    batch = claim(client)
    batch.release()
    client.run(hold(batch.batch_id, batch.lease.epoch, "after 3 attempts; correct the cause"))

    failed = lag_of(client, severity=WARN)

    assert (failed.passed, failed.severity) == (False, ERROR)
    assert failed.description == (
        f"batch {batch.batch_id} of orders/revenue is held after 3 attempts; correct the cause"
    )


def test_consumers_whose_names_differ_in_signs_alone_have_checks_of_their_own() -> None:
    assets = []
    for number, consumer in enumerate(("été-1", "ete_1", "ete-1")):

        @pgque_asset(queue="orders", consumer=consumer, name=f"asset_{number}")
        def counted(batch: SparkBatch) -> int:
            return batch.event_count

        assets.append(counted)

    (checks,) = build_consumer_lag_checks(assets, max_lag=timedelta(1))

    assert len({key.name for key in checks.check_keys}) == 3


def test_a_consumer_that_is_not_registered_is_a_warning(client: Client) -> None:
    client.unregister_consumer("orders", "revenue")

    result = lag_of(client)

    assert (result.passed, result.severity) == (False, WARN)
    assert "not registered" in str(result.description)


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
    @dg.asset
    def plain() -> None:
        """Has no queue."""

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="consumes no queue"):
        build_consumer_lag_checks([plain], max_lag=timedelta(1))


def test_a_consumer_stuck_on_events_that_are_delivered_again_is_behind(
    client: Client, sql: Callable[[str], None]
) -> None:
    ids = publish(client, ["a"])
    batch = claim(client)
    batch.nack(ids, retry_after=timedelta(0))
    batch.ack()
    client.maint()
    tick(client)
    claim(client).release()
    make_older(sql)

    result = lag_of(client, max_lag=timedelta(minutes=1))

    assert not result.passed

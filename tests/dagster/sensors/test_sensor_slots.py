"""Assets with `partitions`: one run in each slot, so that the events of a key stay in order."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.checks.lag import build_consumer_lag_checks
from pgque_dagster.client import Batch, Client
from pgque_dagster.client.holder import ConsumerState, Holder, consumer_states
from pgque_dagster.client.models import Limits
from pgque_dagster.client.registrations import repartition, subscribe_slots
from pgque_dagster.project.consumers import consumers_of
from pgque_dagster.project.database import queue_key
from pgque_dagster.project.queue_report import report_queues
from tests.dagster.support import StoringIOManager, materialize
from tests.support.dagster.checks import run as run_checks
from tests.support.dagster.sensing import evaluate, record_run, the_request
from tests.support.queues.events import tick

Stored = list[tuple[str, str]]

KEYS = ("a", "b", "c", "d", "e", "f")
NOW = timedelta(0)


def keys_and_texts(batch: SparkBatch) -> Stored:
    rows = batch.events(["ev_id", "ev_extra1", "ev_data"]).collect()
    return [(row.ev_extra1, row.ev_data) for row in sorted(rows, key=lambda row: row.ev_id)]


def asset(**options: Any) -> dg.AssetsDefinition:
    return pgque_asset(queue="orders", consumer="parted", name="totals", **options)(keys_and_texts)


totals, in_three = asset(partitions=2), asset(partitions=3)
revenue = pgque_asset(queue="orders", name="revenue")(keys_and_texts)


TWO = build_pgque_sensor([totals], backoff=NOW)
THREE = build_pgque_sensor([in_three], backoff=NOW)


def publish(client: Client, text: str) -> None:
    """One event of each key, in a tick of its own."""
    for key in KEYS:
        client.send("orders", text, partition_key=key)
    tick(client)


@pytest.fixture
def parted(client: Client, instance: dg.DagsterInstance) -> Client:
    """The consumer has two slots."""
    assert "registered at" in str(evaluate(TWO, client.url, instance))
    return client


def claim(client: Client, slot: str, ttl: timedelta = timedelta(minutes=1)) -> Batch:
    claimed = Holder("orders", "parted", slot=slot).claim(
        client, owner="it", ttl=ttl, limits=Limits()
    )
    assert claimed is not None
    return claimed


def requests(found: list[dg.RunRequest] | str) -> dict[str, dg.RunRequest]:
    """The requested runs, by slot."""
    assert not isinstance(found, str), found
    by_slot = {request.tags["pgque/slot"]: request for request in found}
    assert len(by_slot) == len(found)
    return by_slot


def run(
    client: Client,
    spark: SparkSession,
    request: dg.RunRequest,
    instance: dg.DagsterInstance,
    of: dg.AssetsDefinition = totals,
) -> tuple[list[Stored], dg.ExecuteInProcessResult]:
    store = StoringIOManager()
    tags = dict(request.tags)
    done = materialize(of, client.url, spark, io_manager=store, tags=tags, instance=instance)
    return store.stored, done


def states(client: Client) -> list[ConsumerState]:
    return client.run(consumer_states([("orders", "parted")], Limits()))[1:]


def test_the_runs_of_the_slots_together_compute_each_event_once(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    publish(parted, "x")

    computed: Stored = []
    found = requests(evaluate(TWO, parted.url, instance))
    for slot, request in found.items():
        assert f":orders:parted#{slot}:{request.tags['pgque/batch_id']}:1" in str(request.run_key)
        assert request.tags["pgque/consumer"] == "parted"
        stored, done = run(parted, spark, request, instance)
        computed += stored[0]
        (made,) = done.asset_materializations_for_node("totals")
        assert made.metadata["pgque/slot"].value == slot

    assert found.keys() == {"0/2", "1/2"}
    assert sorted(computed) == [(key, "x") for key in KEYS]
    assert "no batch yet" in evaluate(TWO, parted.url, instance)
    parted.send("orders", "y", partition_key="a")
    tick(parted)
    assert len(requests(evaluate(TWO, parted.url, instance))) == 1


def test_a_slot_that_is_not_subscribed_is_named_when_the_others_are_idle(
    parted: Client, instance: dg.DagsterInstance
) -> None:
    with parted.transaction() as db:
        db.execute("select pgque.unsubscribe_slot('orders', 'parted', 1)")
    publish(parted, "x")
    found = requests(evaluate(TWO, parted.url, instance))
    assert found.keys() == {"0/2"}
    claim(parted, "0/2").ack()

    reason = str(evaluate(TWO, parted.url, instance))
    assert "only 1 of the consumer's 2 slots is subscribed" in reason
    assert "select pgque.subscribe_slots('orders', 'parted', 2);" in reason
    parted.run(subscribe_slots("orders", "parted", 2))
    assert "is subscribed" not in str(evaluate(TWO, parted.url, instance))


def test_a_run_that_does_not_end_holds_up_no_slot_whose_batch_is_acked_or_retried(
    parted: Client, instance: dg.DagsterInstance
) -> None:
    """Dagster may record a dead run as started for ever."""
    publish(parted, "x")
    first = requests(evaluate(TWO, parted.url, instance))
    for request in first.values():
        record_run(instance, totals, parted.url, request.tags, dg.DagsterRunStatus.STARTED)
    claim(parted, "0/2").ack()
    claim(parted, "1/2", timedelta(microseconds=1))
    publish(parted, "y")

    found = requests(evaluate(TWO, parted.url, instance))

    assert {slot: request.tags["pgque/attempt"] for slot, request in found.items()} == {
        "0/2": "1",
        "1/2": "2",
    }
    assert found["1/2"].tags["pgque/batch_id"] == first["1/2"].tags["pgque/batch_id"]


@pytest.mark.parametrize("on_exhausted", ["hold", "dead_letter"])
def test_an_exhausted_slot_is_held_or_given_up_alone(
    parted: Client, instance: dg.DagsterInstance, on_exhausted: str
) -> None:
    sensor = build_pgque_sensor(
        [totals],
        max_attempts=1,
        backoff=NOW,
        on_exhausted=on_exhausted,  # type: ignore[arg-type]
    )
    publish(parted, "x")
    request = requests(evaluate(sensor, parted.url, instance))["0/2"]
    claimed = claim(parted, "0/2")
    claimed.release()
    record_run(instance, totals, parted.url, request.tags, dg.DagsterRunStatus.FAILURE)

    assert requests(evaluate(sensor, parted.url, instance)).keys() == {"1/2"}

    (slot, _) = states(parted)
    if on_exhausted == "hold":
        assert slot.batch_id == claimed.batch_id
        assert "re-execute that run" in str(slot.held_reason)
        assert {row.check for row in parted.health() if row.status != "ok"} >= {
            "held_batch:parted#0/2"
        }
    else:
        assert slot.batch_id is None
        (count,) = parted.dead_letter_counts("orders")
        assert count.consumer == "parted#0/2"


def test_a_run_for_an_earlier_slot_is_refused(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    publish(parted, "1")
    early = requests(evaluate(TWO, parted.url, instance))
    for request in early.values():
        run(parted, spark, request, instance)
    evaluate(THREE, parted.url, instance)

    stored, done = run(parted, spark, early["0/2"], instance, in_three)
    assert (stored, done.success) == ([], False)
    failure = done.failure_data_for_node("totals")
    assert failure is not None and "no longer has slot 0/2" in failure.error.to_string()

    parted.run(repartition("orders", "parted", 2))
    stored, done = run(parted, spark, early["0/2"], instance)
    assert (stored, done.success) == ([], True)


def test_a_run_by_hand_registers_the_slots_and_takes_the_next_batch_of_any(
    client: Client, spark: SparkSession
) -> None:
    assert materialize(totals, client.url, spark).success
    assert [state.slot for state in states(client)] == ["0/2", "1/2"]
    publish(client, "x")
    store = StoringIOManager()
    for _ in range(3):
        assert materialize(totals, client.url, spark, io_manager=store).success

    assert sorted(row for batch in store.stored for row in batch) == [(key, "x") for key in KEYS]


def test_new_slots_start_where_the_asset_says(client: Client, instance: dg.DagsterInstance) -> None:
    publish(client, "early")
    sensor = build_pgque_sensor([asset(partitions=2, start_at="earliest")])
    assert "start_at earliest" in str(evaluate(sensor, client.url, instance))
    assert len(requests(evaluate(sensor, client.url, instance))) == 2


def test_a_consumer_without_slots_keeps_its_position(
    client: Client, instance: dg.DagsterInstance
) -> None:
    client.register_consumer("orders", "parted")
    assert "is registered without slots" in str(evaluate(TWO, client.url, instance))


def test_a_consumer_that_is_shared_by_subconsumers_is_not_opened_until_it_is_its_own(
    client: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    shared = Holder("orders", "revenue", "1")
    publish(client, "x")
    client.run(shared.register_subconsumer())
    sensor = build_pgque_sensor([revenue])

    reason = str(evaluate(sensor, client.url, instance))
    by_hand = materialize(revenue, client.url, spark).failure_data_for_node("revenue")
    with client.transaction() as db:
        db.execute("select pgque.unregister_subconsumer('orders', 'revenue', '1')")

    for error in (reason, by_hand.error.to_string()):  # type: ignore[union-attr]
        assert "is shared by subconsumers" in error
        assert "when pgque.unregister_subconsumer has removed all of them" in error
    assert the_request(evaluate(sensor, client.url, instance))


def test_a_consumer_with_slots_is_not_registered_without(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    sensor = build_pgque_sensor([asset()])
    assert "set partitions=2" in str(evaluate(sensor, parted.url, instance))
    assert not materialize(asset(), parted.url, spark).success


def test_the_page_of_the_queue_and_the_check_of_the_lag_show_each_slot(parted: Client) -> None:
    publish(parted, "x")
    consumers = consumers_of([totals])
    page = report_queues(parted, ["orders"], consumers)[queue_key("orders")]
    checks = build_consumer_lag_checks([totals], max_lag=timedelta(microseconds=1))
    (evaluation,) = run_checks(checks, parted.url).values()

    table = str(page["pgque/consumers"].value)  # type: ignore[union-attr]
    for slot in ("0/2", "1/2"):
        (row,) = (line for line in table.splitlines() if f"| parted#{slot} |" in line)
        assert row.endswith("| totals |")
    assert not evaluation.passed


@pytest.mark.parametrize(
    ("define", "words"),
    [
        *[
            (lambda number=number: asset(partitions=number), "partitions is")
            for number in (0, 257, -1, True)
        ],
        (
            lambda: pgque_asset(queue="orders", consumer="a#b", partitions=2)(keys_and_texts),
            "must not contain #",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_defined(
    define: Callable[[], object], words: str
) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=words):
        define()

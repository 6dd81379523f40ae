"""Assets with `partitions`: one run in each slot, so that the events of a key stay in order."""

from datetime import timedelta

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.checks import build_consumer_lag_checks
from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client.calls.states import ConsumerState, consumer_states
from pgque_dagster.client.models import Limits
from pgque_dagster.client.partitions import (
    PartitionedConsumer,
    claim_slot,
    repartition,
    subscribe_slots,
)
from pgque_dagster.consumers import Consumer
from pgque_dagster.keys import queue_key
from pgque_dagster.queue_report import CodeLocation, report_queues
from tests.dagster.support import StoringIOManager, materialize
from tests.support.checks import run as run_checks
from tests.support.events import tick
from tests.support.sensing import evaluate, record_run, the_request

Stored = list[tuple[str, str]]

KEYS = ("a", "b", "c", "d", "e", "f")
NOW = timedelta(0)


@pgque_asset(queue="orders", consumer="parted", partitions=2)
def totals(batch: SparkBatch) -> Stored:
    rows = batch.events(["ev_id", "ev_extra1", "ev_data"]).collect()
    return [(row.ev_extra1, row.ev_data) for row in sorted(rows, key=lambda row: row.ev_id)]


@pgque_asset(queue="orders", consumer="parted", partitions=3, name="totals")
def in_three(batch: SparkBatch) -> Stored:
    rows = batch.events(["ev_id", "ev_extra1", "ev_data"]).collect()
    return [(row.ev_extra1, row.ev_data) for row in sorted(rows, key=lambda row: row.ev_id)]


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
    asset: dg.AssetsDefinition = totals,
) -> tuple[list[Stored], dg.ExecuteInProcessResult]:
    store = StoringIOManager()
    done = materialize(
        asset,
        client.url,
        spark,
        io_manager=store,
        tags=dict(request.tags),
        instance=instance,
    )
    return store.stored, done


def states(client: Client) -> list[ConsumerState]:
    return client.run(consumer_states([("orders", "parted")], Limits()))[1:]


def test_each_slot_gets_a_run_with_its_tag_and_key(
    parted: Client, instance: dg.DagsterInstance
) -> None:
    publish(parted, "x")

    found = requests(evaluate(TWO, parted.url, instance))

    assert found.keys() == {"0/2", "1/2"}
    for slot, request in found.items():
        assert f":orders:parted#{slot}:{request.tags['pgque/batch_id']}:1" in str(request.run_key)
        assert request.tags["pgque/consumer"] == "parted"


def test_the_runs_together_compute_each_event_once(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    publish(parted, "x")

    computed: Stored = []
    for slot, request in requests(evaluate(TWO, parted.url, instance)).items():
        stored, done = run(parted, spark, request, instance)
        computed += stored[0]
        (made,) = done.asset_materializations_for_node("totals")
        assert made.metadata["pgque/slot"].value == slot

    assert sorted(computed) == [(key, "x") for key in KEYS]
    assert "no batch yet" in evaluate(TWO, parted.url, instance)


def test_a_slot_without_events_gets_no_run(parted: Client, instance: dg.DagsterInstance) -> None:
    parted.send("orders", "x", partition_key="a")
    tick(parted)

    assert len(requests(evaluate(TWO, parted.url, instance))) == 1


def test_a_slot_that_is_not_subscribed_is_named_when_the_others_are_idle(
    parted: Client, instance: dg.DagsterInstance
) -> None:
    PartitionedConsumer(parted, "orders", "parted", slots=2).unsubscribe(1)
    publish(parted, "x")
    found = requests(evaluate(TWO, parted.url, instance))
    assert found.keys() == {"0/2"}
    claimed = claim_slot(
        parted, "orders", "parted", "0/2", owner="it", ttl=timedelta(minutes=1), limits=Limits()
    )
    assert claimed is not None
    claimed.ack()

    reason = str(evaluate(TWO, parted.url, instance))
    assert "only 1 of the consumer's 2 slots is subscribed" in reason
    assert "select pgque.subscribe_slots('orders', 'parted', 2);" in reason
    parted.run(subscribe_slots("orders", "parted", 2))
    assert "is subscribed" not in str(evaluate(TWO, parted.url, instance))


def test_a_slot_has_one_unfinished_run_at_a_time(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    """Also while the run that has acked the batch before has not ended."""
    publish(parted, "x")
    first = requests(evaluate(TWO, parted.url, instance))
    going_on = record_run(
        instance, totals, parted.url, first["0/2"].tags, dg.DagsterRunStatus.STARTED
    )
    record_run(instance, totals, parted.url, first["1/2"].tags, dg.DagsterRunStatus.SUCCESS)
    for slot, request in first.items():
        claimed = claim_slot(
            parted, "orders", "parted", slot, owner="it", ttl=timedelta(minutes=1), limits=Limits()
        )
        assert claimed is not None and str(claimed.batch_id) == request.tags["pgque/batch_id"]
        claimed.ack()
    publish(parted, "y")

    assert requests(evaluate(TWO, parted.url, instance)).keys() == {"1/2"}
    instance.report_run_canceled(going_on)
    again = requests(evaluate(TWO, parted.url, instance))
    assert again.keys() == {"0/2", "1/2"}


def test_a_dead_run_that_was_retried_does_not_hold_up_its_slot(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    """Dagster may record it as started for ever."""
    publish(parted, "x")
    first = requests(evaluate(TWO, parted.url, instance))["0/2"]
    record_run(instance, totals, parted.url, first.tags, dg.DagsterRunStatus.STARTED)
    dead = claim_slot(
        parted,
        "orders",
        "parted",
        "0/2",
        owner="it",
        ttl=timedelta(microseconds=1),
        limits=Limits(),
    )
    assert dead is not None
    again = requests(evaluate(TWO, parted.url, instance))["0/2"]
    assert again.tags["pgque/attempt"] == "2"
    stored, _ = run(parted, spark, again, instance)
    assert stored
    publish(parted, "y")

    assert requests(evaluate(TWO, parted.url, instance))["0/2"].tags["pgque/attempt"] == "1"


def test_each_slot_has_its_turn_if_one_run_is_requested_at_a_time(
    client: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    one = build_pgque_sensor([in_three], max_runs=1)
    evaluate(one, client.url, instance)
    served = []
    for text in ("x", "y", "z"):
        publish(client, text)
        request = the_request(evaluate(one, client.url, instance))
        run(client, spark, request, instance, in_three)
        served.append(request.tags["pgque/slot"])

    assert sorted(served) == ["0/3", "1/3", "2/3"]


def test_a_failed_slot_is_retried_while_the_other_goes_on(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    publish(parted, "x")
    first = requests(evaluate(TWO, parted.url, instance))
    record_run(instance, totals, parted.url, first["0/2"].tags, dg.DagsterRunStatus.FAILURE)
    run(parted, spark, first["1/2"], instance)
    publish(parted, "y")

    again = requests(evaluate(TWO, parted.url, instance))

    assert str(again["0/2"].run_key) == str(first["0/2"].run_key)[:-1] + "2"
    stored, _ = run(parted, spark, again["1/2"], instance)
    assert {text for _, text in stored[0]} == {"y"}
    stored, _ = run(parted, spark, again["0/2"], instance)
    assert {text for _, text in stored[0]} == {"x"}


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
    claimed = claim_slot(
        parted, "orders", "parted", "0/2", owner="x", ttl=timedelta(minutes=1), limits=Limits()
    )
    assert claimed is not None
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


def test_another_number_waits_for_open_batches_and_keeps_the_order(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    """The events of one key: those of the open batch, those not read, then later ones."""
    publish(parted, "1")
    for request in requests(evaluate(TWO, parted.url, instance)).values():
        run(parted, spark, request, instance)
    publish(parted, "2")
    early = requests(evaluate(TWO, parted.url, instance))
    run(parted, spark, early["0/2"], instance)
    publish(parted, "3")

    draining = requests(evaluate(THREE, parted.url, instance))
    assert [request.run_key for request in draining.values()] == [early["1/2"].run_key]
    stored, _ = run(parted, spark, draining["1/2"], instance, in_three)
    assert {text for _, text in stored[0]} == {"2"}
    publish(parted, "4")

    later: Stored = []
    while isinstance(found := evaluate(THREE, parted.url, instance), list):
        for slot, request in requests(found).items():
            assert slot.endswith("/3")
            stored, _ = run(parted, spark, request, instance, in_three)
            later += stored[0]
    assert {key: [text for of, text in later if of == key] for key in KEYS} == {
        key: ["3", "4"] for key in KEYS
    }


def test_a_slot_that_was_far_behind_keeps_its_order_when_slots_change(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    publish(parted, "1")
    first = requests(evaluate(TWO, parted.url, instance))
    ahead, _ = run(parted, spark, first["1/2"], instance)
    publish(parted, "2")
    more, _ = run(parted, spark, requests(evaluate(TWO, parted.url, instance))["1/2"], instance)
    behind, _ = run(parted, spark, first["0/2"], instance)
    computed = ahead[0] + more[0] + behind[0]
    publish(parted, "3")
    while isinstance(found := evaluate(THREE, parted.url, instance), list):
        for request in requests(found).values():
            stored, _ = run(parted, spark, request, instance, in_three)
            computed += stored[0]

    assert {key: [text for of, text in computed if of == key] for key in KEYS} == {
        key: ["1", "2", "3"] for key in KEYS
    }


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
    assert failure is not None and "has no slot 0/2 any more" in failure.error.to_string()

    parted.run(repartition("orders", "parted", 2))
    stored, done = run(parted, spark, early["0/2"], instance)
    assert (stored, done.success) == ([], True)


def test_a_run_by_hand_takes_the_next_batch_of_any_slot(
    parted: Client, spark: SparkSession
) -> None:
    publish(parted, "x")
    store = StoringIOManager()
    for _ in range(3):
        assert materialize(totals, parted.url, spark, io_manager=store).success

    assert sorted(row for batch in store.stored for row in batch) == [(key, "x") for key in KEYS]


def test_a_run_by_hand_registers_the_slots(client: Client, spark: SparkSession) -> None:
    assert materialize(totals, client.url, spark).success
    assert [state.slot for state in states(client)] == ["0/2", "1/2"]


def test_new_slots_start_where_the_asset_says(
    client: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    publish(client, "early")
    asset = pgque_asset(
        queue="orders", consumer="parted", partitions=2, start_at="earliest", name="totals"
    )(lambda batch: [])
    sensor = build_pgque_sensor([asset])
    assert "start_at earliest" in str(evaluate(sensor, client.url, instance))
    assert len(requests(evaluate(sensor, client.url, instance))) == 2


def test_a_consumer_without_slots_keeps_its_position(
    client: Client, instance: dg.DagsterInstance
) -> None:
    client.register_consumer("orders", "parted")
    assert "is registered without slots" in str(evaluate(TWO, client.url, instance))


def test_a_consumer_with_slots_is_not_registered_without(
    parted: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    asset = pgque_asset(queue="orders", consumer="parted", name="totals")(lambda batch: [])
    sensor = build_pgque_sensor([asset])
    assert "set partitions=2" in str(evaluate(sensor, parted.url, instance))
    assert not materialize(asset, parted.url, spark).success


def test_a_resource_that_registers_it_without_slots_is_refused(client: Client) -> None:
    resource = PgqueResource(url=client.url, consumers={"orders": ["parted"]})
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="leave it out of `consumers`"):
        TWO(dg.build_sensor_context(), pgque=resource)


def test_another_deployment_is_refused(parted: Client, instance: dg.DagsterInstance) -> None:
    publish(parted, "x")
    production, laptop = (
        PgqueResource(url=parted.url, deployment=name) for name in ("production", "laptop")
    )
    context = dg.build_sensor_context(instance=instance)
    assert isinstance(TWO(context, pgque=production), dg.SensorResult)
    refused = THREE(context, pgque=laptop)
    assert "production" in str(refused.skip_message)
    assert [state.slot for state in states(parted)] == ["0/2", "1/2"]


def test_events_are_not_retried_one_by_one(parted: Client) -> None:
    publish(parted, "x")
    claimed = claim_slot(
        parted, "orders", "parted", "0/2", owner="x", ttl=timedelta(minutes=1), limits=Limits()
    )
    assert claimed is not None
    first, *others = claimed.events()
    with pytest.raises(InvalidArgument, match="keeps the events of each key in order"):
        claimed.nack([first.msg_id])
    claimed.dead_letter([first.msg_id], reason="bad")
    assert claimed.ack().dead_lettered == 1
    assert others


def test_the_page_of_the_queue_names_each_slot(parted: Client) -> None:
    publish(parted, "x")
    location = CodeLocation([Consumer.of(totals)])
    page = report_queues(parted, ["orders"], location)[queue_key("orders")]
    table = str(page["pgque/consumers"].value)  # type: ignore[union-attr]
    for slot in ("0/2", "1/2"):
        assert f"| parted#{slot} | totals |" in table


def test_the_lag_of_slots_is_checked(parted: Client) -> None:
    publish(parted, "x")
    checks = build_consumer_lag_checks(
        [totals], max_lag=timedelta(hours=1), max_pending_events=len(KEYS)
    )
    (evaluation,) = run_checks(checks, parted.url).values()
    assert evaluation.passed
    assert evaluation.metadata["pending_events"].value == len(KEYS)


def test_a_worker_by_pages_keeps_the_sensor_off_its_slot(
    parted: Client, instance: dg.DagsterInstance
) -> None:
    publish(parted, "x")
    pages = PartitionedConsumer(parted, "orders", "parted", slots=2)
    assert pages.claim(0, worker="w")
    assert requests(evaluate(TWO, parted.url, instance)).keys() == {"1/2"}


@pytest.mark.parametrize("partitions", [0, 257, -1, True])
def test_an_impossible_number_is_refused(partitions: int) -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="partitions is"):
        pgque_asset(queue="orders", partitions=partitions, name="x")(lambda batch: None)


def test_several_batches_at_a_time_are_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match=r"parallel_runs is 2.*partitions=2"):
        build_pgque_sensor([totals], parallel_runs=2)


def test_a_name_that_looks_like_a_slot_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="must not contain #"):
        pgque_asset(queue="orders", consumer="a#b", partitions=2)(lambda batch: None)

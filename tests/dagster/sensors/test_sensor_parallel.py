"""`parallel_runs`: several batches of one consumer at a time, through subconsumers."""

from datetime import timedelta

import dagster as dg
from pyspark.sql import SparkSession

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client, Limits
from pgque_dagster.client.holder import Holder
from tests.dagster.support import StoringIOManager, materialize
from tests.support.events import publish
from tests.support.sensing import evaluate, record_run, the_request


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


TWO = build_pgque_sensor([revenue], parallel_runs=2, max_events=1, backoff=timedelta(0))


def requests(found: list[dg.RunRequest] | str) -> list[dg.RunRequest]:
    assert not isinstance(found, str), found
    return found


def subconsumer_of(request: dg.RunRequest) -> str:
    return request.tags["pgque/subconsumer"]


def test_so_many_batches_of_one_consumer_get_a_run_at_a_time_and_are_acked_in_any_order(
    client: Client, instance: dg.DagsterInstance, spark: SparkSession
) -> None:
    publish(client, ["a"])
    publish(client, ["b", "c"])
    found = requests(evaluate(TWO, client.url, instance))
    assert [subconsumer_of(request) for request in found] == ["1", "2"]
    assert len({request.run_key for request in found}) == 2
    publish(client, ["d"])
    going_on = [
        record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.STARTED)
        for request in found
    ]
    assert "is started" in evaluate(TWO, client.url, instance)

    stored = StoringIOManager()
    for request, run in reversed(list(zip(found, going_on, strict=True))):
        tags = dict(request.tags)
        done = materialize(
            revenue, client.url, spark, tags=tags, instance=instance, io_manager=stored
        )
        assert done.success
        instance.report_run_canceled(run)

    assert stored.stored == [2, 1]
    assert len(requests(evaluate(TWO, client.url, instance))) == 1


def test_a_failed_part_is_tried_again_while_the_other_goes_on(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    publish(client, ["b"])
    first, second = requests(evaluate(TWO, client.url, instance))
    record_run(instance, revenue, client.url, first.tags, dg.DagsterRunStatus.FAILURE)
    record_run(instance, revenue, client.url, second.tags, dg.DagsterRunStatus.STARTED)

    again = the_request(evaluate(TWO, client.url, instance))

    assert subconsumer_of(again) == subconsumer_of(first)
    assert again.run_key == str(first.run_key)[:-1] + "2"


def test_the_open_batch_of_a_normal_consumer_ends_before_it_is_shared(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    batch_id = client.next_batch("orders", "revenue")
    publish(client, ["b"])

    request = the_request(evaluate(TWO, client.url, instance))

    assert request.tags["pgque/batch_id"] == str(batch_id)
    assert "pgque/subconsumer" not in request.tags


def test_parts_beyond_a_smaller_number_are_finished_and_get_nothing_new(
    client: Client, instance: dg.DagsterInstance
) -> None:
    for text in ("a", "b", "c"):
        publish(client, [text])
    first, second = requests(evaluate(TWO, client.url, instance))
    client.finish_batch(int(first.tags["pgque/batch_id"]))
    one = build_pgque_sensor([revenue], max_events=1)

    left = the_request(evaluate(one, client.url, instance))

    assert left.run_key == second.run_key


def test_an_exhausted_part_becomes_dead_letters_of_the_consumer(
    client: Client, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    sensor = build_pgque_sensor(
        [revenue],
        parallel_runs=2,
        max_attempts=1,
        backoff=timedelta(0),
        on_exhausted="dead_letter",
    )
    request = the_request(evaluate(sensor, client.url, instance))
    record_run(instance, revenue, client.url, request.tags, dg.DagsterRunStatus.FAILURE)
    assert subconsumer_of(the_request(evaluate(sensor, client.url, instance))) == "1"
    ttl = timedelta(microseconds=1)
    Holder("orders", "revenue", "1").claim(
        client, owner="a run that died", ttl=ttl, limits=Limits()
    )

    assert "subconsumer 1: given up after 1 attempt," in evaluate(sensor, client.url, instance)
    assert [(x.consumer, x.count) for x in client.dead_letter_counts("orders")] == [("revenue", 1)]

"""How much of a batch may be malformed before the schema is taken to be wrong."""

import logging
import re
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument, MalformedPayload
from pgque_dagster.client.encoding import Payload
from pgque_dagster.spark import SparkBatch
from pgque_dagster.spark.payload.malformed import OnMalformed
from tests.support.queues.events import claim, make_queue, publish, tick
from tests.support.spark.attempts import BatchOf

SCHEMA = "id int"


def payloads(good: int, wrong: int) -> list[Payload]:
    return [{"id": 1}] * good + [{"id": "x"}] * wrong


class Claimed:
    """A claimed batch, and what becomes of it."""

    def __init__(
        self, client: Client, spark: SparkSession, events: list[Payload], queue: str = "orders"
    ) -> None:
        self.ids = publish(client, events, queue)
        self.batch = claim(client, queue)
        self.spark_batch = SparkBatch(spark, self.batch, client.url)

    def is_untouched(self) -> bool:
        return is_untouched(self.spark_batch)


def is_untouched(batch: SparkBatch) -> bool:
    return (batch.claim.requested.nacked, batch.claim.requested.dead_lettered) == (0, 0)


def test_a_batch_fails_when_all_or_more_than_the_share_of_its_events_are_malformed(
    batch_of: BatchOf,
) -> None:
    for good, wrong in ((0, 1), (44, 5), (5, 5)):
        batch = batch_of(*payloads(good, wrong))

        with pytest.raises(MalformedPayload, match=f"{wrong} of {good + wrong} events"):
            batch.payload(SCHEMA)

        assert is_untouched(batch)
        batch.claim.ack()


def test_up_to_the_share_or_a_few_events_are_set_aside(batch_of: BatchOf) -> None:
    """A few are always allowed, and the share is compared as it is written."""
    shares: list[tuple[int, int, dict[str, float]]] = [
        *((1, 4, {}), (45, 5, {}), (71, 29, {"max_malformed": 0.29}), (10, 4, {"max_malformed": 0}))
    ]
    for good, wrong, share in shares:
        batch = batch_of(*payloads(good, wrong))

        rows = batch.payload(SCHEMA, **share).collect()

        assert len(rows) == good
        assert batch.claim.ack().dead_lettered == wrong


def test_a_share_of_zero_does_not_allow_five(batch_of: BatchOf) -> None:
    with pytest.raises(MalformedPayload, match="5 of 1005"):
        batch_of(*payloads(1000, 5)).payload(SCHEMA, max_malformed=0)


def test_a_share_of_one_sets_aside_even_all(batch_of: BatchOf) -> None:
    batch = batch_of(*payloads(0, 7))

    rows = batch.payload(SCHEMA, max_malformed=1.0)

    assert rows.count() == 0
    assert batch.claim.ack().dead_lettered == 7


def test_a_share_out_of_range_and_an_unknown_policy_are_refused_at_once(batch_of: BatchOf) -> None:
    batch = batch_of(*payloads(1, 0))
    policies: list[OnMalformed] = ["dead_letter", "fail", "keep"]

    for value in (-0.1, 1.1, float("nan"), True, "0.1", None):
        told = rf"max_malformed is {re.escape(repr(value))}"
        for policy in policies:
            with pytest.raises(InvalidArgument, match=told):
                batch.payload(SCHEMA, on_malformed=policy, max_malformed=value)
        with pytest.raises(InvalidArgument, match=told):
            batch.changes(SCHEMA, key=["id"], max_malformed=value)
    with pytest.raises(InvalidArgument, match="on_malformed is 'ignore'"):
        batch.payload("new string", on_malformed="ignore")


def test_the_error_shows_the_first_three_with_reason_and_fields_and_says_what_to_do(
    batch_of: BatchOf, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    batch = batch_of({"id": "one", "name": "secret"}, {"name": "x"}, "[1, 2]", {"id": "four"})
    first, second, third, fourth = (event.msg_id for event in batch.claim.events())

    with pytest.raises(MalformedPayload) as raised:
        batch.payload("id int not null")
    text = str(raised.value)

    assert f"4 of 4 events of batch {batch.batch_id} of orders/revenue" in text
    expected = "Expected `int`, got `str` - at `$.id` (it has the fields id: STRING, name: STRING)"
    assert f"event {first}: {expected}" in text
    missing = "Object missing required field `id` (it has the fields name: STRING)"
    assert f"event {second}: {missing}" in text
    expected = "Expected `object`, got `array` (it begins with '[1, 2]')"
    assert f"event {third}: {expected}" in text
    assert f"event {fourth}" not in text
    assert f"`pgque dead-letters add orders revenue {first} {second} {third} {fourth}`" in text
    assert "`pgque peek orders --consumer revenue`" in text
    assert f"event {fourth}: Expected `int`, got `str`" in caplog.text
    assert "secret" not in text
    assert "Correct the schema and materialize again, or raise max_malformed" in text


def test_what_the_error_shows_is_short_whatever_the_payload(batch_of: BatchOf) -> None:
    batch = batch_of({f"field_{number}": 1 for number in range(60)}, "x" * 10_000)
    schema = ", ".join(f"missing_{number} int not null" for number in range(60))

    with pytest.raises(MalformedPayload) as raised:
        batch.payload(schema)

    assert len(str(raised.value)) < 1500


def test_under_fail_one_malformed_event_is_enough_and_named(batch_of: BatchOf) -> None:
    batch = batch_of({"id": 1}, "{")
    _, wrong = batch.claim.events()

    told = rf"1 of 2 events .* malformed: event {wrong.msg_id}: Input data was truncated"
    with pytest.raises(MalformedPayload, match=told):
        batch.payload(SCHEMA, on_malformed="fail")


def test_a_batch_that_fails_brings_no_reasons_but_those_shown_to_the_driver(
    spark: SparkSession, batch_of: BatchOf, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(*payloads(0, 50))
    brought: list[int] = []
    to_arrow = type(spark.range(0)).toArrow

    def counted(frame: Any) -> Any:
        table = to_arrow(frame)
        if any(table.schema.field(name).type == "string" for name in table.column_names):
            brought.append(table.num_rows)
        return table

    monkeypatch.setattr(type(spark.range(0)), "toArrow", counted)
    with pytest.raises(MalformedPayload):
        batch.payload(SCHEMA)

    assert sum(brought) <= 3


def test_events_malformed_in_several_calls_count_once(client: Client, batch_of: BatchOf) -> None:
    batch = batch_of(*payloads(54, 6))

    batch.payload("id int")
    batch.payload("id double")
    batch.claim.ack()

    assert [count.count for count in client.dead_letter_counts("orders")] == [6]


def test_several_calls_on_a_batch_count_together(batch_of: BatchOf) -> None:
    batch = batch_of(*payloads(40, 4), *[{"id": 1, "total": "x"}] * 4)

    batch.payload("id int")
    with pytest.raises(MalformedPayload, match="8 of 48 events"):
        batch.payload("total int")


def test_calls_that_allow_all_or_were_refused_do_not_count_for_the_others(
    batch_of: BatchOf,
) -> None:
    batch = batch_of(*payloads(10, 10), {"id": 1, "total": "x"})

    with pytest.raises(MalformedPayload):
        batch.payload("old int not null")
    batch.payload("id int", max_malformed=1.0)
    batch.payload("total int")

    assert batch.claim.ack().dead_lettered == 11


def test_changes_fail_as_payloads_do(batch_of: BatchOf) -> None:
    batch = batch_of(*payloads(0, 6))

    with pytest.raises(MalformedPayload, match=r"6 of 6 .*ev_type is not a change of a table"):
        batch.changes(SCHEMA, key=["id"])
    assert is_untouched(batch)
    assert batch.changes(SCHEMA, key=["id"], max_malformed=1.0).count() == 0


def test_a_batch_without_events_does_not_fail(client: Client, spark: SparkSession) -> None:
    tick(client)

    assert SparkBatch(spark, claim(client), client.url).payload(SCHEMA).count() == 0


def test_what_is_set_aside_is_logged_with_its_share(
    batch_of: BatchOf, caplog: pytest.LogCaptureFixture
) -> None:
    batch = batch_of(*payloads(2, 1))
    *_, wrong = batch.claim.events()

    with caplog.at_level(logging.WARNING):
        batch.payload(SCHEMA)

    assert "1 of 3 events of batch" in caplog.text
    assert f"event {wrong.msg_id}: Expected `int | null`, got `str` - at `$.id`" in caplog.text


# ---- a batch of malformed events alone: what the consumer finished before decides ----------------


def work(client: Client, *, good: int = 0, failed: int = 0, queue: str = "orders") -> None:
    """The consumer finishes events before the batch of the test."""
    for count, is_failed in ((good, False), (failed, True)):
        ids = publish(client, payloads(count, 0), queue)
        batch = client.claim(queue, "revenue", owner="earlier")
        if batch is not None:
            batch.dead_letter(ids if is_failed else [], reason="by hand")
            batch.ack()


def test_a_few_malformed_events_alone_are_set_aside_if_the_consumer_worked_before(
    client: Client, spark: SparkSession
) -> None:
    for good, failed, wrong, refused in (
        (0, 0, 1, "and the consumer finished no well-formed event before"),
        (0, 3, 1, "and the consumer finished no well-formed event before"),
        (1, 0, 1, None),
        (1, 0, 4, None),
        (1, 3, 1, None),
        (1, 4, 1, "and 4 of the last 5 events of the consumer are dead letters or wait"),
        (60, 4, 1, "and 4 of the last 45 events of the consumer are dead letters or wait"),
        (60, 2, 3, "and 2 of the last 45 events of the consumer are dead letters or wait"),
        (60, 0, 5, "5 of 5 events of batch"),
    ):
        queue = f"{good} {failed} {wrong}"
        make_queue(client, queue)
        work(client, good=good, failed=failed, queue=queue)
        claimed = Claimed(client, spark, payloads(0, wrong), queue)

        if refused is None:
            assert claimed.spark_batch.payload(SCHEMA).count() == 0
            assert claimed.batch.ack().dead_lettered == wrong
        else:
            with pytest.raises(MalformedPayload, match=refused):
                claimed.spark_batch.payload(SCHEMA)
            assert claimed.is_untouched()


def test_a_wrong_schema_on_a_quiet_queue_sets_four_events_aside_and_then_fails(
    client: Client, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    work(client, good=60)

    for _ in range(4):
        claimed = Claimed(client, spark, payloads(0, 1))
        claimed.spark_batch.payload(SCHEMA)
        assert claimed.batch.ack().dead_lettered == 1
        assert "1 of 1 events of batch" in caplog.text
        caplog.clear()
    claimed = Claimed(client, spark, payloads(0, 1))

    with pytest.raises(MalformedPayload, match=r"4 of the last 45 .*the schema .* changed"):
        claimed.spark_batch.payload(SCHEMA)
    assert claimed.is_untouched()


def test_events_that_wait_for_a_retry_count_as_failed(client: Client, spark: SparkSession) -> None:
    work(client, good=60)
    for _ in range(4):
        claimed = Claimed(client, spark, payloads(0, 1))
        claimed.batch.nack(claimed.ids, retry_after=timedelta(hours=1))
        claimed.batch.ack()
    claimed = Claimed(client, spark, payloads(0, 1))

    with pytest.raises(MalformedPayload, match=r"4 of the last 45 .*wait for a retry"):
        claimed.spark_batch.payload(SCHEMA)


def test_changes_of_a_consumer_that_worked_before_are_set_aside_too(
    client: Client, spark: SparkSession
) -> None:
    work(client, good=1)
    claimed = Claimed(client, spark, payloads(0, 1))

    assert claimed.spark_batch.changes(SCHEMA, key=["id"]).count() == 0

    assert claimed.batch.ack().dead_lettered == 1


def test_an_event_set_aside_by_hand_is_not_read_again_and_is_delivered_by_a_replay(
    client: Client, spark: SparkSession
) -> None:
    claimed = Claimed(client, spark, payloads(2, 1))
    claimed.batch.release()
    client.set_events_aside("orders", "revenue", claimed.ids[2:], reason="by hand")

    again = SparkBatch(spark, claim(client), client.url)
    assert again.event_count == 2
    assert again.payload(SCHEMA, on_malformed="fail").count() == 2
    assert again.events(["ev_id"]).count() == 2
    (letter,) = client.dead_letters("orders")
    client.replay_dead_letter(letter.id)
    again.claim.ack()
    tick(client)
    assert [event.payload for event in claim(client).events()] == ['{"id":"x"}']

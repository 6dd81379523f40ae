"""How much of a batch may be malformed before the schema is taken to be wrong."""

import itertools
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
from tests.support.events import claim, publish, tick

WRONG = {"id": "x"}
SCHEMA = "id int"
POLICIES: list[OnMalformed] = ["dead_letter", "retry"]


def payloads(good: int, wrong: int) -> list[Payload]:
    return [{"id": 1}] * good + [WRONG] * wrong


class Claimed:
    """A claimed batch, and what becomes of it."""

    def __init__(
        self, client: Client, url: str, spark: SparkSession, events: list[Payload]
    ) -> None:
        self.ids = publish(client, events)
        self.batch = claim(client)
        self.spark_batch = SparkBatch(spark, self.batch, url)

    def is_untouched(self) -> bool:
        return (self.batch.requested.nacked, self.batch.requested.dead_lettered) == (0, 0)


@pytest.mark.parametrize(("good", "wrong"), [(0, 1), (44, 5), (5, 5)])
def test_a_batch_fails_when_all_or_more_than_the_share_of_its_events_are_malformed(
    client: Client, database_url: str, spark: SparkSession, way: str, good: int, wrong: int
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(good, wrong))

    for policy in POLICIES:
        with pytest.raises(MalformedPayload, match=f"{wrong} of {good + wrong} events"):
            claimed.spark_batch.payload(SCHEMA, on_malformed=policy)

    assert claimed.is_untouched()


@pytest.mark.parametrize(("good", "wrong"), [(1, 4), (45, 5)])
def test_up_to_the_share_or_a_few_events_are_set_aside(
    client: Client, database_url: str, spark: SparkSession, way: str, good: int, wrong: int
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(good, wrong))

    rows = claimed.spark_batch.payload(SCHEMA).collect()

    assert len(rows) == good
    assert claimed.batch.ack().dead_lettered == wrong


def test_the_share_is_compared_as_it_is_written(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(71, 29))

    claimed.spark_batch.payload(SCHEMA, max_malformed=0.29)

    assert claimed.batch.ack().dead_lettered == 29


def test_a_share_of_zero_still_allows_a_few(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    allowed = Claimed(client, database_url, spark, payloads(10, 4))
    allowed.spark_batch.payload(SCHEMA, max_malformed=0)
    allowed.batch.ack()
    refused = Claimed(client, database_url, spark, payloads(1000, 5))

    with pytest.raises(MalformedPayload, match="5 of 1005"):
        refused.spark_batch.payload(SCHEMA, max_malformed=0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_share_of_one_sets_aside_even_all(
    client: Client, database_url: str, spark: SparkSession, policy: OnMalformed
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(0, 7))

    rows = claimed.spark_batch.payload(
        SCHEMA, on_malformed=policy, retry_after=timedelta(0), max_malformed=1.0
    )
    result = claimed.batch.ack()

    assert rows.count() == 0
    assert result.nacked + result.dead_lettered == 7


def test_a_share_out_of_range_is_refused_at_once(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(1, 0))
    wrong: list[Any] = [-0.1, 1.1, float("nan"), True, "0.1", None]
    policies: list[OnMalformed] = [*POLICIES, "fail", "keep"]

    for value, policy in itertools.product(wrong, policies):
        with pytest.raises(InvalidArgument, match=rf"max_malformed is {re.escape(repr(value))}"):
            claimed.spark_batch.payload(SCHEMA, on_malformed=policy, max_malformed=value)


def test_the_error_shows_the_first_three_with_reason_and_fields_and_says_what_to_do(
    client: Client, database_url: str, spark: SparkSession, way: str
) -> None:
    texts: list[Payload] = [
        {"id": "one", "name": "secret"}, {"name": "x"}, "[1, 2]", {"id": "four"}
    ]  # fmt: skip
    claimed = Claimed(client, database_url, spark, texts)
    first, second, third, fourth = claimed.ids

    with pytest.raises(MalformedPayload) as raised:
        claimed.spark_batch.payload("id int not null")
    text = str(raised.value)

    assert f"4 of 4 events of batch {claimed.batch.batch_id} of orders/revenue" in text
    assert f"event {first}: id is no int (it has the fields id: STRING, name: STRING)" in text
    assert f"event {second}: id is missing (it has the fields name: STRING)" in text
    assert f"event {third}: JSON, but no object (it begins with '[1, 2]')" in text
    assert f"event {fourth}" not in text
    assert "secret" not in text
    assert "Correct the schema and materialize again, or raise max_malformed" in text


def test_what_the_error_shows_is_short_whatever_the_payload(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    wide = {f"field_{number}": 1 for number in range(60)}
    claimed = Claimed(client, database_url, spark, [wide, "x" * 10_000])
    schema = ", ".join(f"missing_{number} int not null" for number in range(60))

    with pytest.raises(MalformedPayload) as raised:
        claimed.spark_batch.payload(schema)

    assert len(str(raised.value)) < 1500


def test_a_batch_that_fails_brings_no_reasons_but_those_shown_to_the_driver(
    client: Client,
    database_url: str,
    spark: SparkSession,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(0, 50))
    brought: list[int] = []
    to_arrow = type(spark.range(0)).toArrow

    def counted(frame: Any) -> Any:
        table = to_arrow(frame)
        if any(table.schema.field(name).type == "string" for name in table.column_names):
            brought.append(table.num_rows)
        return table

    monkeypatch.setattr(type(spark.range(0)), "toArrow", counted)
    with pytest.raises(MalformedPayload):
        claimed.spark_batch.payload(SCHEMA)

    assert sum(brought) <= 3


def test_events_malformed_in_several_calls_count_once(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(54, 6))

    claimed.spark_batch.payload("id int")
    claimed.spark_batch.payload("id double")
    claimed.batch.ack()

    assert [count.count for count in client.dead_letter_counts("orders")] == [6]


def test_several_calls_on_a_batch_count_together(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    events: list[Payload] = [*payloads(40, 4), *[{"id": 1, "total": "x"}] * 4]
    claimed = Claimed(client, database_url, spark, events)

    claimed.spark_batch.payload("id int")
    with pytest.raises(MalformedPayload, match="8 of 48 events"):
        claimed.spark_batch.payload("total int")


def test_a_call_that_allows_all_does_not_count_for_the_others(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    events: list[Payload] = [*payloads(10, 10), {"id": 1, "total": "x"}]
    claimed = Claimed(client, database_url, spark, events)

    claimed.spark_batch.payload("id int", max_malformed=1.0)
    claimed.spark_batch.payload("total int")

    assert claimed.batch.ack().dead_lettered == 11


def test_changes_and_fragments_fail_as_payloads_do(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(0, 6))

    with pytest.raises(MalformedPayload, match=r"6 of 6 .*ev_type is not of jsontriga"):
        claimed.spark_batch.changes(SCHEMA, key=["id"])
    with pytest.raises(MalformedPayload, match=r"6 of 6 .*ev_type is not of sqltriga"):
        claimed.spark_batch.fragments()
    assert claimed.is_untouched()
    assert claimed.spark_batch.changes(SCHEMA, key=["id"], max_malformed=1.0).count() == 0
    assert claimed.spark_batch.fragments(max_malformed=1.0).count() == 0
    for call in (
        lambda: claimed.spark_batch.changes(SCHEMA, key=["id"], max_malformed=2),
        lambda: claimed.spark_batch.fragments(max_malformed=2),
    ):
        with pytest.raises(InvalidArgument, match="max_malformed is 2"):
            call()


def test_a_batch_without_events_does_not_fail(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    tick(client)
    batch = SparkBatch(spark, claim(client), database_url)

    assert batch.payload(SCHEMA).count() == 0


def test_what_is_set_aside_is_logged_with_its_share(
    client: Client, database_url: str, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(2, 1))

    with caplog.at_level(logging.WARNING):
        claimed.spark_batch.payload(SCHEMA)

    assert "1 of 3 events of batch" in caplog.text
    assert f"event {claimed.ids[2]}: id is no int" in caplog.text


def test_a_call_that_was_refused_does_not_count_for_the_next_one(
    client: Client, spark: SparkSession
) -> None:
    good: list[Payload] = [{"new": "x"}] * 20
    publish(client, [*good, "garbage"])
    batch = claim(client)
    both = SparkBatch(spark, batch, client.url)

    with pytest.raises(MalformedPayload):
        both.payload("old int not null")

    assert both.payload("new string not null").count() == 20
    assert batch.ack().dead_lettered == 1


def test_a_policy_that_there_is_not_is_refused(client: Client, spark: SparkSession) -> None:
    publish(client, [{"new": "x"}])
    batch = SparkBatch(spark, claim(client), client.url)

    with pytest.raises(InvalidArgument, match="on_malformed is 'ignore'"):
        batch.payload("new string", on_malformed="ignore")  # type: ignore[arg-type]


# ---- a batch of malformed events alone: what the consumer finished before decides ----------------


def work(client: Client, *, good: int = 0, failed: int = 0) -> None:
    """The consumer finishes events before the batch of the test."""
    for count, is_failed in ((good, False), (failed, True)):
        ids = publish(client, payloads(count, 0))
        batch = client.claim("orders", "revenue", owner="earlier")
        if batch is not None:
            batch.dead_letter(ids if is_failed else [], reason="by hand")
            batch.ack()


@pytest.mark.parametrize(
    ("good", "failed", "wrong", "refused"),
    [
        (0, 0, 1, "and the consumer finished no well-formed event before"),
        (0, 3, 1, "and the consumer finished no well-formed event before"),
        (1, 0, 1, None),
        (1, 0, 4, None),
        (1, 3, 1, None),
        (1, 4, 1, "and 4 of the last 5 events of the consumer are dead letters or wait"),
        (60, 4, 1, "and 4 of the last 45 events of the consumer are dead letters or wait"),
        (60, 2, 3, "and 2 of the last 45 events of the consumer are dead letters or wait"),
        (60, 0, 5, "5 of 5 events of batch"),
    ],
)
def test_a_few_malformed_events_alone_are_set_aside_if_the_consumer_worked_before(
    client: Client,
    database_url: str,
    spark: SparkSession,
    good: int,
    failed: int,
    wrong: int,
    refused: str | None,
) -> None:
    work(client, good=good, failed=failed)
    claimed = Claimed(client, database_url, spark, payloads(0, wrong))

    if refused is None:
        assert claimed.spark_batch.payload(SCHEMA).count() == 0
        assert claimed.batch.ack().dead_lettered == wrong
    else:
        with pytest.raises(MalformedPayload, match=refused):
            claimed.spark_batch.payload(SCHEMA)
        assert claimed.is_untouched()


def test_a_wrong_schema_on_a_quiet_queue_sets_four_events_aside_and_then_fails(
    client: Client, database_url: str, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    work(client, good=60)

    for _ in range(4):
        claimed = Claimed(client, database_url, spark, payloads(0, 1))
        claimed.spark_batch.payload(SCHEMA)
        assert claimed.batch.ack().dead_lettered == 1
        assert "1 of 1 events of batch" in caplog.text
        caplog.clear()
    claimed = Claimed(client, database_url, spark, payloads(0, 1))

    with pytest.raises(MalformedPayload, match=r"4 of the last 45 .*the schema .* changed"):
        claimed.spark_batch.payload(SCHEMA)
    assert claimed.is_untouched()


def test_events_that_wait_for_a_retry_count_as_failed(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    work(client, good=60)
    for _ in range(4):
        claimed = Claimed(client, database_url, spark, payloads(0, 1))
        claimed.spark_batch.payload(SCHEMA, on_malformed="retry")
        claimed.batch.ack()
    claimed = Claimed(client, database_url, spark, payloads(0, 1))

    with pytest.raises(MalformedPayload, match=r"4 of the last 45 .*wait for a retry"):
        claimed.spark_batch.payload(SCHEMA, on_malformed="retry")


def test_changes_of_a_consumer_that_worked_before_are_set_aside_too(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    work(client, good=1)
    claimed = Claimed(client, database_url, spark, payloads(0, 1))

    assert claimed.spark_batch.changes(SCHEMA, key=["id"]).count() == 0

    assert claimed.batch.ack().dead_lettered == 1


def test_the_error_says_how_to_set_single_events_aside(
    client: Client, database_url: str, spark: SparkSession
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(0, 1))

    with pytest.raises(MalformedPayload, match=r"`pgque dead-letters add orders revenue EVENT"):
        claimed.spark_batch.payload(SCHEMA)


def test_an_event_set_aside_by_hand_is_not_read_again_and_is_delivered_by_a_replay(
    client: Client, database_url: str, spark: SparkSession, way: str
) -> None:
    claimed = Claimed(client, database_url, spark, payloads(2, 1))
    claimed.batch.release()
    client.set_events_aside("orders", "revenue", claimed.ids[2:], reason="by hand")

    again = SparkBatch(spark, claim(client), database_url)
    assert again.event_count == 2
    assert again.payload(SCHEMA, on_malformed="fail").count() == 2
    assert again.events(["ev_id"]).count() == 2
    (letter,) = client.dead_letters("orders")
    client.replay_dead_letter(letter.id)
    again.claim.ack()
    tick(client)
    assert [event.payload for event in claim(client).events()] == ['{"id":"x"}']

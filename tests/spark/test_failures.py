"""Failed events, named by a DataFrame: they take effect with the ack, or not at all."""

from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Batch, Client, EventNotInBatch, InvalidArgument
from pgque_dagster.client.calls import failures
from pgque_dagster.spark import SparkBatch
from tests.support.events import claim, publish


class Claimed:
    """A batch of four events, and what becomes of them."""

    def __init__(self, client: Client, url: str, spark: SparkSession) -> None:
        self.ids = publish(client, [{"id": n} for n in range(4)])
        self.client = client
        self.batch: Batch = claim(client)
        self.spark_batch = SparkBatch(spark, self.batch, url)

    def dead(self) -> list[tuple[int, str | None]]:
        letters = self.client.dead_letters("orders")
        return sorted((letter.event_id, letter.reason) for letter in letters)


@pytest.fixture
def claimed(client: Client, database_url: str, spark: SparkSession) -> Claimed:
    return Claimed(client, database_url, spark)


def test_events_of_a_dataframe_are_nacked_and_given_up_at_the_ack(claimed: Claimed) -> None:
    orders = claimed.spark_batch.payload("id bigint", keep=["ev_id"])

    claimed.spark_batch.nack(orders.where(f.col("id") < 2))
    claimed.spark_batch.dead_letter(orders.where(f.col("id") == 3), reason="not for us")
    before = claimed.dead()
    result = claimed.batch.ack()

    assert before == []
    assert (result.nacked, result.dead_lettered) == (2, 1)
    assert claimed.dead() == [(claimed.ids[3], "not for us")]


def test_a_column_gives_each_event_its_reason(claimed: Claimed) -> None:
    orders = claimed.spark_batch.payload("id bigint", keep=["ev_id"])
    why = f.when(f.col("id") > 0, f.concat(f.lit("number "), f.col("id")))

    claimed.spark_batch.dead_letter(orders, reason=why)
    claimed.batch.ack()

    reasons = [None, "number 1", "number 2", "number 3"]
    assert claimed.dead() == list(zip(claimed.ids, reasons, strict=True))


def test_more_ids_than_a_call_takes_are_settled_in_several(
    claimed: Claimed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_IDS_PER_CALL", 3)
    orders = claimed.spark_batch.payload("id int", keep=["ev_id"])

    claimed.spark_batch.dead_letter(orders, reason=f.col("id"))
    result = claimed.batch.ack()

    assert result.dead_lettered == 4
    assert claimed.dead() == list(zip(claimed.ids, ["0", "1", "2", "3"], strict=True))


def test_an_event_named_twice_counts_once(
    claimed: Claimed, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_IDS_PER_CALL", 1)
    twice = spark.createDataFrame([(claimed.ids[0],)] * 2, "msg_id bigint")

    claimed.spark_batch.dead_letter(twice, reason="twice")
    claimed.spark_batch.nack(twice.repartition(2), reason=f.lit("twice"))
    result = claimed.batch.ack()

    assert (result.nacked, result.dead_lettered) == (1, 1)


def test_an_event_given_up_is_not_delivered_again_as_well(claimed: Claimed, client: Client) -> None:
    claimed.spark_batch.nack(claimed.ids[:2])
    claimed.spark_batch.dead_letter(claimed.ids[:1], reason="hopeless")
    claimed.batch.ack()

    with client.transaction() as connection:
        waiting = connection.execute("select ev_id from pgque.retry_queue").fetchall()
    assert waiting == [(claimed.ids[1],)]
    assert claimed.dead() == [(claimed.ids[0], "hopeless")]


def test_an_empty_dataframe_settles_nothing(claimed: Claimed, spark: SparkSession) -> None:
    claimed.spark_batch.nack(spark.createDataFrame([], "ev_id bigint"))
    claimed.spark_batch.dead_letter(
        spark.createDataFrame([], "ev_id bigint, why string"), reason=f.col("why")
    )
    result = claimed.batch.ack()
    assert (result.nacked, result.dead_lettered) == (0, 0)


def test_an_event_of_another_batch_keeps_all_as_it_was(
    claimed: Claimed, spark: SparkSession
) -> None:
    ids = spark.createDataFrame([(claimed.ids[0],), (4711,)], "ev_id bigint")
    claimed.spark_batch.dead_letter(ids, reason="any")

    with pytest.raises(EventNotInBatch, match="4711"):
        claimed.batch.ack()

    assert claimed.dead() == []
    claimed.batch.release()


@pytest.mark.parametrize(
    ("rows", "schema", "words"),
    [
        ([], "id bigint, name string", "no column ev_id or msg_id, only id, name"),
        ([(None,)], "ev_id bigint", "rows without an id"),
        ([("1",)], "ev_id string", "column ev_id is of type string"),
        ([(1.5,)], "msg_id double", "column msg_id is of type double"),
    ],
)
def test_a_dataframe_without_usable_ids_is_refused_at_once(
    claimed: Claimed,
    spark: SparkSession,
    rows: Sequence[tuple[object, ...]],
    schema: str,
    words: str,
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        claimed.spark_batch.dead_letter(spark.createDataFrame(rows, schema), reason="any")
    assert claimed.batch.ack().dead_lettered == 0


def test_a_column_as_reason_for_plain_ids_is_refused(claimed: Claimed) -> None:
    with pytest.raises(InvalidArgument, match="not a DataFrame"):
        claimed.spark_batch.nack(claimed.ids, reason=f.lit("x"))

"""Failed events, named by a DataFrame: they take effect with the ack, or not at all."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client import batch as batches
from pgque_dagster.spark import SparkBatch
from tests.support.spark.attempts import BatchOf


@pytest.fixture
def batch(batch_of: BatchOf) -> SparkBatch:
    """A batch of four events."""
    return batch_of(*({"id": n} for n in range(4)))


@pytest.fixture
def ids(batch: SparkBatch) -> list[int]:
    return [event.msg_id for event in batch.claim.events()]


@pytest.fixture
def orders(batch: SparkBatch) -> DataFrame:
    return batch.payload("id bigint", keep=["ev_id"])


def dead(client: Client) -> list[tuple[int, str | None]]:
    letters = client.dead_letters("orders")
    return sorted((letter.event_id, letter.reason) for letter in letters)


def test_events_of_a_dataframe_are_nacked_and_given_up_at_the_ack(
    client: Client, batch: SparkBatch, ids: list[int], orders: DataFrame
) -> None:
    batch.nack(orders.where(f.col("id") < 2))
    batch.nack(orders.where("false"))
    batch.dead_letter(orders.where(f.col("id") == 3), reason="not for us")
    before = dead(client)
    result = batch.claim.ack()

    assert before == []
    assert (result.nacked, result.dead_lettered) == (2, 1)
    assert dead(client) == [(ids[3], "not for us")]


@pytest.mark.parametrize("ids_per_call", [3, 1000])
def test_a_column_gives_each_event_its_reason_also_in_several_calls(
    client: Client,
    batch: SparkBatch,
    ids: list[int],
    orders: DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    ids_per_call: int,
) -> None:
    monkeypatch.setattr(batches, "_IDS_PER_CALL", ids_per_call)
    why = f.when(f.col("id") > 0, f.concat(f.lit("number "), f.col("id")))

    batch.dead_letter(orders, reason=why)
    batch.claim.ack()

    assert dead(client) == list(zip(ids, [None, "number 1", "number 2", "number 3"], strict=True))


def test_an_event_named_twice_counts_once(
    batch: SparkBatch, ids: list[int], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_IDS_PER_CALL", 1)
    twice = spark.createDataFrame([(ids[0],)] * 2, "ev_id bigint")

    batch.dead_letter(twice, reason="twice")
    batch.nack(twice.repartition(2), reason=f.lit("twice"))
    result = batch.claim.ack()

    assert (result.nacked, result.dead_lettered) == (1, 1)


def test_a_dataframe_without_usable_ids_is_refused_at_once(
    batch: SparkBatch, spark: SparkSession
) -> None:
    cases: list[tuple[list[Any], str, str]] = [
        ([], "id bigint, name string", "no column ev_id, only id, name"),
        ([(None,)], "ev_id bigint", "rows without an id"),
        ([("1",)], "ev_id string", "column ev_id is of type string"),
        ([(1.5,)], "ev_id double", "column ev_id is of type double"),
    ]
    for rows, schema, words in cases:
        with pytest.raises(InvalidArgument, match=words):
            batch.dead_letter(spark.createDataFrame(rows, schema), reason="any")
    with pytest.raises(InvalidArgument, match="not a DataFrame"):
        batch.nack([1], reason=f.lit("x"))
    assert batch.claim.ack().dead_lettered == 0

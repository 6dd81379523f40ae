"""Batches that are merged into a Delta table by key."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchNotOpen, Client, InvalidArgument
from pgque_dagster.spark import DeltaSink, PostgresSink
from pgque_dagster.spark.sinks.delta_output import DeltaOutput
from tests.support.attempts import again, next_batch, once_before_the_swap
from tests.support.delta_tables import rows

SCHEMA = "number bigint, name string"


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def test_upsert_replaces_the_row_of_each_key(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location, mode="upsert", key=["number"])
    for payloads in ([(1, "a"), (2, "b")], [(2, "B"), (3, "c")]):
        batch = next_batch(client, spark, [{"number": n, "name": name} for n, name in payloads])
        sink.write(batch, batch.payload(SCHEMA))
        repeated = again(client, spark, batch)
        sink.write(repeated, repeated.payload(SCHEMA))
        repeated.claim.ack()

    assert [row[:2] for row in rows(location)] == [(1, "a"), (2, "B"), (3, "c")]


def test_replace_replaces_all_rows_of_each_key(
    client: Client, spark: SparkSession, location: str
) -> None:
    sink = DeltaSink(location, mode="replace", key=["number"])
    for payloads in ([(1, "a"), (1, "b"), (2, "c")], [(1, "d"), (3, "e"), (3, "f")]):
        batch = next_batch(client, spark, [{"number": n, "name": name} for n, name in payloads])
        sink.write(batch, batch.payload(SCHEMA))
        repeated = again(client, spark, batch)
        sink.write(repeated, repeated.payload(SCHEMA))
        repeated.claim.ack()

    assert [row[:2] for row in rows(location)] == [(1, "d"), (2, "c"), (3, "e"), (3, "f")]


@pytest.mark.parametrize("sink", [DeltaSink, PostgresSink])
def test_a_key_that_is_a_text_is_refused(sink: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sink("sales", mode="upsert", key="product")
    assert str(refused.value) == (
        "key is the text 'product', not a list of columns. Write key=[\"product\"]."
    )


@pytest.mark.parametrize("mode", ["upsert", "replace"])
def test_a_stale_attempt_does_not_merge(
    client: Client,
    spark: SparkSession,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: Any,
) -> None:
    sink = DeltaSink(location, mode=mode, key=["number"])
    stale = next_batch(client, spark, [{"number": 1, "name": "x"}])

    def taken_over() -> None:
        later = again(client, spark, stale)
        sink.write(later, later.payload(SCHEMA).selectExpr("number", "'later' as name"))
        later.claim.ack()

    once_before_the_swap(monkeypatch, DeltaOutput, taken_over)
    with pytest.raises(BatchNotOpen):
        sink.write(stale, stale.payload(SCHEMA))

    assert [row[:2] for row in rows(location)] == [(1, "later")]


def test_a_key_that_is_null_or_repeated_is_refused(
    client: Client, spark: SparkSession, location: str
) -> None:
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}, {"number": 1, "name": "y"}])
    frame = batch.payload(SCHEMA)

    with pytest.raises(InvalidArgument, match=r"2 rows for .* have the key number 1"):
        DeltaSink(location, mode="upsert", key=["number"]).write(batch, frame)
    with pytest.raises(InvalidArgument, match=r"column number is part of the key .*has a null"):
        DeltaSink(location, mode="replace", key=["number"]).write(
            batch, frame.selectExpr("nullif(number, 1) as number", "name")
        )
    with pytest.raises(InvalidArgument, match="has no column customer, which is part of the key"):
        DeltaSink(location, mode="replace", key=["customer"]).write(batch, frame)

    assert rows(location) == []
    assert list(Path(location).rglob("*.parquet")) == []


def test_a_key_with_parts_is_refused_before_anything_is_written(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    batch = next_batch(client, spark, [{"number": {"a": 1}}])
    with pytest.raises(InvalidArgument, match="the column number, whose values have parts"):
        DeltaSink(place, mode="upsert", key=["number"]).write(
            batch, batch.payload("number struct<a: int>")
        )
    assert not place.exists()

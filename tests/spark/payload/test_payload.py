"""Typed payloads: what fits becomes columns, and each that does not fit keeps its reason."""

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import SparkBatch, parse_payloads
from tests.spark.payload.payload_batches import SCHEMA_NAMES, SCHEMAS, read_batch, wrong
from tests.spark.payload.payload_corpus import Case
from tests.support.queues.events import claim, publish
from tests.support.spark.attempts import BatchOf
from tests.support.spark.jobs import jobs_of

ORDER = "id bigint not null, total double"

REASONS = {
    '{"id": 1': "Input data was truncated",
    "": "Input data was truncated",
    "[]": "Expected `object`, got `array`",
    '{"total": 1.5}': "Object missing required field `id`",
    '{"id": null}': "Expected `int`, got `null` - at `$.id`",
    '{"total": "much"}': "Expected `float | null`, got `str` - at `$.total`",
}


def given_up(client: Client) -> dict[str, str]:
    """The payloads that are dead letters, with their reasons."""
    letters = client.dead_letters("orders", 1000)
    return {
        str(letter.payload): str(letter.reason).removeprefix("malformed payload: ")
        for letter in letters
    }


@pytest.mark.parametrize(("schema", "some"), SCHEMAS, ids=SCHEMA_NAMES)
def test_a_batch_is_read_as_the_corpus_says(
    client: Client, spark: SparkSession, way: str, schema: t.StructType, some: list[Case]
) -> None:
    expected = dict(zip(publish(client, [case.payload for case in some]), some, strict=True))

    rows = read_batch(client, SparkBatch(spark, claim(client), client.url), schema)

    assert wrong(rows, expected) == []
    assert given_up(client).keys() == {case.payload for case in some if case.reason is not None}


def test_payload_fields_become_columns_beside_those_kept(batch_of: BatchOf, way: str) -> None:
    batch = batch_of({"id": 7, "total": 1.5, "more": True})
    (event,) = batch.claim.events()

    (row,) = batch.payload(ORDER, keep=["ev_id"]).collect()

    assert row.asDict() == {"ev_id": event.msg_id, "id": 7, "total": 1.5}


def test_fields_whose_names_differ_in_case_are_two_fields(batch_of: BatchOf, way: str) -> None:
    batch = batch_of('{"a": 1, "A": 2}', '{"a": 3}')

    for rows in (
        batch.payload("a int, A int"), parse_payloads(batch.events(), "a int, A int")
    ):  # fmt: skip
        found = sorted(rows.toArrow().to_pylist(), key=lambda row: row["a"])
        assert found == [{"a": 1, "A": 2}, {"a": 3, "A": None}]


def test_a_field_may_be_named_like_a_column_of_events_or_of_our_own(
    client: Client, batch_of: BatchOf, way: str
) -> None:
    names = ["_pgque_id", "_pgque_malformed", "_pgque_text", "_pgque_reason", "_PGQUE_ID"]
    names += ["_pgque_0", "ev_id", "ev_data"]
    inner = t.StructType([t.StructField(name, t.LongType()) for name in names])
    schema = t.StructType([t.StructField("s", inner), *inner])
    numbers = dict.fromkeys(names, 6)
    batch = batch_of({"s": numbers, **numbers}, "[]", {"ev_id": "seven"})

    rows = batch.payload(schema, keep=["ev_type"])

    assert rows.toArrow().to_pylist() == [{"ev_type": "default", "s": numbers, **numbers}]
    batch.claim.ack()
    assert given_up(client).keys() == {"[]", '{"ev_id":"seven"}'}


def test_each_malformed_payload_becomes_a_dead_letter_with_its_reason_at_the_ack_and_not_before(
    client: Client, batch_of: BatchOf, way: str
) -> None:
    batch = batch_of({"id": 1}, *REASONS, {"id": 2})

    good = batch.payload(ORDER, max_malformed=1.0)
    ids = sorted(row.id for row in good.collect())
    before = given_up(client)
    batch.claim.ack()

    assert ids == [1, 2]
    assert before == {}
    assert given_up(client) == REASONS


def test_malformed_payloads_of_a_small_batch_are_known_without_a_spark_job(
    client: Client, spark: SparkSession, batch_of: BatchOf
) -> None:
    batch = batch_of({"id": 1}, "{")
    spark.sparkContext.setJobGroup("malformed", "what payload() runs")

    good = batch.payload(ORDER)

    assert jobs_of(spark, "malformed") == []
    assert [row.id for row in good.collect()] == [1]
    batch.claim.ack()
    assert given_up(client) == {"{": "Input data was truncated"}


def test_malformed_payloads_stay_under_keep(batch_of: BatchOf) -> None:
    rows = batch_of({"id": 1}, "{").payload(ORDER, on_malformed="keep").collect()

    assert sorted((row.id for row in rows), key=str) == [1, None]


def test_a_schema_that_cannot_be_used_is_named(batch_of: BatchOf) -> None:
    batch = batch_of({"id": 1})
    schemas: dict[Any, str] = {
        "id biggint": "is not a schema: .*BIGGINT",
        "id varchar(3)": "char or varchar.*Write string",
        "id bigint, names array<char(2)>": "char or varchar.*Write string",
        "": "no field",
        "ev_time string": "both a payload field",
        "EV_TIME string": "both a payload field",
        int: "is not a schema",
    }
    for schema, message in schemas.items():
        with pytest.raises(InvalidArgument, match=message):
            batch.payload(schema, keep=["ev_time"])

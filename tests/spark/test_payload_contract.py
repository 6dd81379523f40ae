"""docs/payloads.md holds for a batch, whether the driver or executors read it."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from tests.spark.payload_corpus import Case, cases
from tests.spark.test_json_parser import shown
from tests.support.events import claim, publish

# PostgreSQL's text holds no character zero.
CASES = [case for case in cases() if "\0" not in case.payload]


def of_one_field() -> tuple[t.StructType, list[Case]]:
    """Cases of one field x, each with the field's type as its name, to be read as one batch."""
    schema, read = t.StructType(), []
    for case in CASES:
        (field, *others) = case.schema
        if others or field.name != "x" or not case.payload.startswith('{"x":'):
            continue
        name = field.dataType.simpleString()
        if name not in schema.names:
            schema = schema.add(name, field.dataType)
        payload = case.payload.replace('"x"', f'"{name}"', 1)
        reason = case.reason and f"{name}{case.reason.removeprefix('x')}"
        read.append(Case(schema, payload, case.values and {name: case.values["x"]}, reason))
    return schema, read


def of_schema(size: int) -> tuple[t.StructType, list[Case]]:
    """Cases of the schema with so many fields of their own."""
    schema = next(case.schema for case in CASES if len(case.schema) == size)
    return schema, [case for case in CASES if case.schema == schema]


@pytest.mark.parametrize(
    ("schema", "some"),
    [of_one_field(), of_schema(2), of_schema(5)],
    ids=["values", "documents", "orders"],
)
def test_a_batch_is_read_as_the_corpus_says(
    client: Client,
    database_url: str,
    spark: SparkSession,
    way: str,
    schema: t.StructType,
    some: list[Case],
) -> None:
    expected = dict(zip(publish(client, [case.payload for case in some]), some, strict=True))
    claimed = claim(client)

    batch = SparkBatch(spark, claimed, database_url)
    fitting = batch.payload(schema, keep=["ev_id"], max_malformed=1.0).toArrow()
    claimed.ack()

    given_up = {letter.payload: letter.reason for letter in client.dead_letters("orders", 1000)}
    malformed = {case.payload: case.reason for case in some if case.reason}
    assert given_up == {text: f"malformed payload: {why}" for text, why in malformed.items()}
    read = {row.pop("ev_id"): row for row in fitting.to_pylist()}
    nothing = dict.fromkeys(schema.names)
    wanted = {i: {**nothing, **case.values} for i, case in expected.items() if case.values}
    assert sorted(read) == sorted(wanted)
    for event_id, values in wanted.items():
        assert shown(read[event_id]) == shown(values)

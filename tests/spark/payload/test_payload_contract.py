"""docs/payloads.md holds for a batch, whether the driver or executors read it."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from pgque_dagster.client import Client
from pgque_dagster.spark import SparkBatch
from tests.spark.payload.payload_batches import SCHEMA_NAMES, SCHEMAS, read_batch, wrong
from tests.spark.payload.payload_corpus import Case
from tests.support.events import claim, publish


@pytest.mark.parametrize(("schema", "some"), SCHEMAS, ids=SCHEMA_NAMES)
def test_a_batch_is_read_as_the_corpus_says(
    client: Client,
    database_url: str,
    spark: SparkSession,
    way: str,
    schema: t.StructType,
    some: list[Case],
) -> None:
    expected = dict(zip(publish(client, [case.payload for case in some]), some, strict=True))

    batch = SparkBatch(spark, claim(client), database_url)
    rows = read_batch(client, batch, schema)

    assert wrong(rows, expected) == []
    assert {letter.payload for letter in client.dead_letters("orders", 1000)} == {
        case.payload for case in some if case.reason
    }

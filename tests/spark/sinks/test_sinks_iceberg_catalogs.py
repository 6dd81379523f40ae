"""The catalog of Iceberg tables: in the queue's own database, or another one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchNotOpen, Client, PermissionDenied
from pgque_dagster.spark import IcebergSink, SparkBatch
from pgque_dagster.spark.sinks.iceberg_output import IcebergOutput
from pgque_dagster.spark.sinks.storage import StorageFailed
from tests.support.attempts import again, next_batch, once_before_the_swap
from tests.support.events import claim, publish
from tests.support.logins import as_login
from tests.support.stored_tables import iceberg_catalog

SCHEMA = "number bigint, name string"
TABLE = "sales.revenue"

Sink = Callable[..., IcebergSink]


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    def new(**options: Any) -> IcebergSink:
        return IcebergSink(TABLE, warehouse=tmp_path / "warehouse", **options)

    return new


@pytest.mark.parametrize("name", [{}, {"name": "lake"}], ids=["without a name", "with a name"])
def test_tables_may_be_in_another_catalog(
    client: Client,
    spark: SparkSession,
    sink: Sink,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: dict[str, str],
) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    elsewhere = sink(catalog={**properties, **name})
    stale = next_batch(client, spark, [{"number": 1, "name": "x"}])

    def taken_over() -> None:
        later = again(client, spark, stale)
        elsewhere.write(later, later.payload(SCHEMA))
        later.claim.ack()

    once_before_the_swap(monkeypatch, IcebergOutput, taken_over)
    with pytest.raises(BatchNotOpen):
        elsewhere.write(stale, stale.payload(SCHEMA).selectExpr("9L as number", "name"))

    catalog = load_catalog(name.get("name", "pgque"), **properties)
    assert numbers(catalog) == [1]
    assert [row.number for row in elsewhere.read(spark, client.url).collect()] == [1]
    with psycopg.connect(client.url) as connection:
        schemas = connection.execute("select to_regnamespace('iceberg_catalog')").fetchone()
    assert schemas == (None,)


def test_a_catalog_that_is_away_between_write_and_commit_leaves_nothing_half_published(
    client: Client, spark: SparkSession, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    acked = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink().write(acked, acked.payload(SCHEMA))
    acked.claim.ack()
    batch = next_batch(client, spark, [{"number": 2, "name": "x"}])

    def away(name: str) -> Callable[[], None]:
        return lambda: execute(client, f"alter schema {name}")

    once_before_the_swap(
        monkeypatch, IcebergOutput, away("iceberg_catalog rename to iceberg_catalog_away")
    )
    with pytest.raises(StorageFailed, match=rf"{TABLE} did not take batch {batch.batch_id}"):
        sink().write(batch, batch.payload(SCHEMA))
    away("iceberg_catalog_away rename to iceberg_catalog")()

    assert numbers(iceberg_catalog(client.url)) == [1]
    later = again(client, spark, batch)
    sink().write(later, later.payload(SCHEMA))
    assert numbers(iceberg_catalog(client.url)) == [1, 2]


def test_a_role_that_may_not_create_the_catalog_is_told_what_to_grant(
    client: Client, spark: SparkSession, sink: Sink
) -> None:
    publish(client, [{"number": 1, "name": "x"}])
    url = as_login(client.url, "pgque_reader")
    with Client(url) as reader:
        batch = SparkBatch(spark, claim(reader), url)

        with pytest.raises(PermissionDenied, match="iceberg_catalog") as told:
            sink().write(batch, batch.payload(SCHEMA))

        execute(client, str(told.value).partition("As an administrator: ")[2])
        sink().write(batch, batch.payload(SCHEMA))
    assert numbers(iceberg_catalog(client.url)) == [1]


def numbers(catalog: Catalog) -> list[int]:
    stored = catalog.load_table(TABLE).scan().to_arrow()
    return sorted(stored["number"].to_pylist())


def execute(client: Client, statement: str) -> None:
    with psycopg.connect(client.url, autocommit=True) as connection:
        connection.execute(statement.encode())

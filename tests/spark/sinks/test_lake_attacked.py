"""Tables in places where something else is: other tables, other databases, odd names."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import StringType
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink
from tests.conftest import TEMPLATE, Server, administer
from tests.support.attempts import again, next_batch
from tests.support.delta_tables import rows
from tests.support.events import make_queue
from tests.support.s3 import BUCKET, S3
from tests.support.stored_tables import iceberg_catalog

TABLE = "sales.revenue"
SCHEMA = "number bigint, name string"
OLD_SECONDS = 8 * 86400


def age(folder: Path) -> None:
    """Makes all files look as if they were written long ago."""
    at = time.time() - OLD_SECONDS
    for path in folder.rglob("*"):
        os.utime(path, (at, at))


def test_vacuum_keeps_a_table_in_the_folder_of_another_one(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    # As of the assets ["sales"] and ["sales", "revenue"].
    outer, inner = str(tmp_path / "sales"), str(tmp_path / "sales" / "revenue")
    for location in (outer, inner):
        batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
        DeltaSink(location).write(batch, batch.payload(SCHEMA))
        batch.claim.ack()
    age(tmp_path)

    assert DeltaSink(outer).vacuum() == []

    assert len(rows(outer)) == len(rows(inner)) == 1


def test_vacuum_removes_files_that_were_replaced_or_united(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    sink = DeltaSink(location)
    first = next_batch(client, spark, [{"number": n, "name": "x"} for n in range(3)])
    sink.write(first, first.payload(SCHEMA))
    sink.optimize()
    later = again(client, spark, first)
    sink.write(later, later.payload(SCHEMA))
    before = set(Path(location).rglob("*.parquet"))
    age(tmp_path)
    write_removals_long_ago(location)

    listed = sink.vacuum(dry_run=True)
    assert set(Path(location).rglob("*.parquet")) == before
    assert sink.vacuum() == listed

    left = {str(path) for path in Path(location).rglob("*.parquet")}
    assert left == set(DeltaTable(location).file_uris())
    assert len(rows(location)) == 3


def write_removals_long_ago(location: str) -> None:
    for path in Path(location, "_delta_log").glob("*.json"):
        lines = path.read_text()
        now = str(int(time.time() * 1000))[:6]
        earlier = str(int((time.time() - OLD_SECONDS) * 1000))[:6]
        path.write_text(
            lines.replace(f'"deletionTimestamp":{now}', f'"deletionTimestamp":{earlier}')
        )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", "a" * 100),
        ("string", "b" * 31 + chr(0x10FFFF) * 9 + "c"),
        ("string", "c" * 5000),
        ("decimal(38,18)", Decimal("12345678901234567890.123456789012345678")),
        ("decimal(38,18)", Decimal("-0.000000000000000001")),
        ("decimal(5,2)", Decimal("999.99")),
        ("string", chr(0x10FFFF) * 9),
        ("boolean", True),
        ("boolean", False),
    ],
)
def test_deltas_library_finds_every_value_by_a_condition(
    client: Client, spark: SparkSession, tmp_path: Path, kind: str, value: object
) -> None:
    location = str(tmp_path / "table")
    batch = next_batch(client, spark, [{"number": 1}])
    frame = spark.createDataFrame([(value,), (None,)], f"value {kind}")

    DeltaSink(location).write(batch, frame.coalesce(1))

    found = DeltaTable(location).to_pyarrow_dataset()
    wanted = pa.scalar(value, found.schema.field("value").type)
    assert found.to_table(filter=ds.field("value") == wanted)["value"].to_pylist() == [value]


def test_tables_of_two_databases_in_one_warehouse_have_folders_of_their_own(
    client: Client, spark: SparkSession, tmp_path: Path, server: Server
) -> None:
    sink = IcebergSink(TABLE, warehouse=tmp_path)
    with another_database(server) as other:
        for each in (client, other):
            batch = next_batch(each, spark, [{"number": 1}])
            sink.write(batch, batch.payload("number bigint"))
            batch.claim.ack()
        age(tmp_path)

        assert sink.sweep(client.url) == sink.sweep(other.url) == []

        assert iceberg_numbers(client.url) == iceberg_numbers(other.url) == [1]


def test_a_table_that_takes_the_name_of_a_renamed_one_has_a_folder_of_its_own(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    sink = IcebergSink(TABLE, warehouse=tmp_path)
    for renamed in (False, True):
        if renamed:
            iceberg_catalog(client.url).rename_table(TABLE, "sales.earlier")
        batch = next_batch(client, spark, [{"number": 1}])
        sink.write(batch, batch.payload("number bigint"))
        batch.claim.ack()
    age(tmp_path)

    assert sink.sweep(client.url) == []

    assert iceberg_numbers(client.url, "sales.earlier") == iceberg_numbers(client.url) == [1]


@contextmanager
def another_database(server: Server) -> Iterator[Client]:
    """A database with a queue and batch ids of its own."""
    administer(server, f"create database another_lake template {TEMPLATE}")
    with Client(server.database_url("another_lake")) as client:
        make_queue(client)
        yield client
    administer(server, "drop database another_lake with (force)")


def iceberg_numbers(url: str, table: str = TABLE) -> list[int]:
    stored: list[int] = (
        iceberg_catalog(url).load_table(table).scan().to_arrow()["number"].to_pylist()
    )
    return sorted(stored)


@pytest.mark.parametrize("name", ["a.b", "a`b"])
def test_a_column_that_spark_does_not_find_is_refused_by_name(
    client: Client, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    batch = next_batch(client, spark, [{"number": 1}])
    frame = batch.payload("number bigint").toDF(name)

    with pytest.raises(InvalidArgument, match=f"column {name} has a dot or a backtick"):
        DeltaSink(tmp_path / "table").write(batch, frame)


@pytest.mark.parametrize("name", ["100%", "a%20b", "a\\b"])
def test_a_folder_that_deltas_library_would_look_for_elsewhere_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidArgument, match="looks for it elsewhere"):
        DeltaSink(tmp_path / name)


@pytest.mark.parametrize("name", ["with space", "größe", "a+b=c", "it's"])
def test_an_iceberg_table_is_readable_wherever_its_warehouse_is(
    client: Client, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    sink = IcebergSink(TABLE, warehouse=tmp_path / name)
    for _ in range(2):
        batch = next_batch(client, spark, [{"number": 1}])
        sink.write(batch, batch.payload("number bigint"))
        batch.claim.ack()

    assert iceberg_numbers(client.url) == [1, 1]
    assert sink.read(spark, client.url).count() == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["100%", "a#b", "a?b"])
def test_a_warehouse_where_readers_would_look_elsewhere_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidArgument, match="look for the files elsewhere"):
        IcebergSink(TABLE, warehouse=tmp_path / name)


@pytest.mark.parametrize("sink", [DeltaSink, ParquetSink, partial(IcebergSink, TABLE)])
@pytest.mark.parametrize("url", ["s3://bucket/a#b", "s3://bucket/a?b", "file:///tmp/a#b"])
def test_a_url_that_stores_would_cut_is_refused(sink: Any, url: str) -> None:
    with pytest.raises(InvalidArgument, match="more than a bucket and a path"):
        sink(warehouse=url) if isinstance(sink, partial) else sink(url)


@pytest.mark.parametrize("name", ["a?b", "a*", "a\\b"])
def test_a_path_with_which_spark_reads_other_tables_is_refused(
    client: Client, spark: SparkSession, tmp_path: Path, name: str
) -> None:
    batch = next_batch(client, spark, [{"number": 1}])

    with pytest.raises(InvalidArgument, match="for a pattern"):
        ParquetSink(tmp_path / name).write(batch, batch.payload("number bigint"))


def renamed(table: Table) -> None:
    with table.update_schema() as change:
        change.rename_column("name", "label")


def dropped_and_added(table: Table) -> None:
    with table.update_schema() as change:
        change.delete_column("name")
    with table.update_schema() as change:
        change.add_column("name", StringType())


@pytest.mark.parametrize("change", [renamed, dropped_and_added])
def test_an_iceberg_table_whose_columns_changed_names_is_not_read_by_names(
    client: Client, spark: SparkSession, tmp_path: Path, change: Callable[[Table], None]
) -> None:
    sink = IcebergSink(TABLE, warehouse=tmp_path)
    batch = next_batch(client, spark, [{"number": 1, "name": "x"}])
    sink.write(batch, batch.payload(SCHEMA))
    batch.claim.ack()

    change(iceberg_catalog(client.url).load_table(TABLE))

    with pytest.raises(InvalidArgument, match=r"renamed, or dropped and added again: (name|label)"):
        sink.read(spark, client.url)


def test_an_iceberg_table_with_lists_of_deleted_rows_is_not_read_without_them(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    sink = IcebergSink(TABLE, warehouse=tmp_path)
    batch = next_batch(client, spark, [{"number": 1}, {"number": 2}])
    sink.write(batch, batch.payload("number bigint").coalesce(1))
    batch.claim.ack()

    delete_first_row(iceberg_catalog(client.url).load_table(TABLE))

    assert len(iceberg_numbers(client.url)) == 1
    with pytest.raises(InvalidArgument, match="files that list deleted rows"):
        sink.read(spark, client.url)


def delete_first_row(table: Table) -> None:
    """As engines do that merge on read."""
    (task,) = table.scan().plan_files()
    path = f"{table.location()}/data/deleted.parquet"
    rows = pa.table({"file_path": [task.file.file_path], "pos": pa.array([0], pa.int64())})
    pq.write_table(rows, path.removeprefix("file://"))
    entry = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=Path(path.removeprefix("file://")).stat().st_size,
        spec_id=0,
    )
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(entry)


def test_a_table_is_read_in_a_folder_that_spark_takes_for_a_pattern(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    sink = DeltaSink(tmp_path / "a[1] {b} c? d*")
    batch = next_batch(client, spark, [{"number": 1}])
    sink.write(batch, batch.payload("number bigint"))

    assert sink.read(spark).count() == 1


def test_a_sweep_keeps_a_table_in_the_folder_of_another_one_in_an_object_store(
    client: Client, spark: SparkSession, s3: S3
) -> None:
    folder = uuid.uuid4().hex
    outer, inner, replay = (
        ParquetSink(s3.url(f"{folder}{path}"), storage_options=s3.options)
        for path in ("", "/inner", "/replay=again")
    )
    for sink in (outer, inner, replay):
        for _ in range(2):
            batch = next_batch(client, spark, [{"number": 1}])
            sink.write(batch, batch.payload("number bigint"))
            batch.claim.ack()
    left = [f"{folder}{path}/batch_id=1/epoch-1.a/part-1.parquet" for path in ("", "/replay=again")]
    for name in left:
        s3.client.put_object(Bucket=BUCKET, Key=name, Body=b"")

    assert outer.sweep(older_than=timedelta(seconds=-1)) == len(left)

    assert not set(left) & set(s3.names(folder))
    assert (outer.read(spark).count(), inner.read(spark).count()) == (4, 2)


def test_a_namespace_that_another_attempt_creates_at_the_same_time_is_used(
    client: Client, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SqlCatalog.create_namespace

    def too_late(catalog: SqlCatalog, namespace: str) -> None:
        create(catalog, namespace)
        with monkeypatch.context() as patch:
            patch.setattr(SqlCatalog, "namespace_exists", lambda *_: False)
            create(catalog, namespace)

    monkeypatch.setattr(SqlCatalog, "create_namespace", too_late)
    batch = next_batch(client, spark, [{"number": 1}])

    IcebergSink(TABLE, warehouse=tmp_path).write(batch, batch.payload("number bigint"))

    assert iceberg_numbers(client.url) == [1]

"""What only an Iceberg table promises: its catalogs and its snapshots."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from pgque_dagster.client import BatchNotOpen, Client, InvalidArgument, PermissionDenied
from pgque_dagster.spark import DeltaSink, IcebergSink, ParquetSink, SparkBatch
from pgque_dagster.spark.sinks.files.storage import Storage, StorageFailed
from pgque_dagster.spark.sinks.iceberg.catalog import open_catalog
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import PATIENCE_SECONDS
from tests.support.runner.calls import at_call
from tests.support.servers.logins import as_login
from tests.support.spark.lakes import SCHEMA, TABLE, IcebergLake, age


def test_rows_of_an_attempt_whose_snapshot_expired_are_replaced(lake: IcebergLake) -> None:
    first = lake.batch(2, 3)
    lake.write(first)
    old = lake.table().current_snapshot()
    lake.table().append(pa.table({"number": [9], "name": ["y"], "batch_id": [0]}))
    lake.table().maintenance.expire_snapshots().by_id(old.snapshot_id).commit()

    lake.write(lake.again(first), where="number = 3")

    assert lake.numbers() == [3, 9]


def test_readers_skip_files_by_statistics(lake: IcebergLake) -> None:
    batch = lake.batch(3, 7)
    lake.sink().write(batch, batch.payload(SCHEMA).coalesce(1))

    assert list(lake.table().scan("number > 9").plan_files()) == []
    assert len(list(lake.table().scan("number > 5").plan_files())) == 1


def test_a_text_that_pyiceberg_cannot_cut_is_stored(lake: IcebergLake) -> None:
    batch = lake.batch(1)
    lake.write(batch, "number", r"concat(repeat('a', 15), '\uD7FF', 'z') as name")
    assert [name[-1] for _, name, *_ in lake.rows()] == ["z"]


def test_tables_may_be_in_another_catalog(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {"name": "lake", "type": "sql", "uri": f"sqlite:///{lake.folder}/catalog.db"}
    elsewhere: dict[str, Any] = {"catalog": properties}
    stale = lake.batch(1)

    at_call(monkeypatch, lake.output, "replace", lambda: lake.take_over(stale, **elsewhere))
    with pytest.raises(BatchNotOpen):
        lake.write(stale, "9L as number", "name", **elsewhere)

    catalog = load_catalog(**properties)
    assert catalog.load_table(TABLE).scan().to_arrow()["number"].to_pylist() == [1]
    read = lake.sink(**elsewhere).read(lake.spark, lake.client.url)
    assert [row.number for row in read.collect()] == [1]
    with psycopg.connect(lake.client.url) as connection:
        schemas = connection.execute("select to_regnamespace('iceberg_catalog')").fetchone()
    assert schemas == (None,)


def test_a_catalog_that_is_away_between_write_and_commit_leaves_nothing_half_published(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.store(1)
    batch = lake.batch(2)
    rename = partial(execute, lake.client, "alter schema iceberg_catalog rename to away")

    at_call(monkeypatch, lake.output, "replace", rename)
    with pytest.raises(StorageFailed, match=rf"{TABLE} did not take batch {batch.batch_id}"):
        lake.write(batch)
    execute(lake.client, "alter schema away rename to iceberg_catalog")

    assert lake.numbers() == [1]
    lake.write(lake.again(batch))
    assert lake.numbers() == [1, 2]


def test_a_role_that_may_not_create_the_catalog_is_told_what_to_grant(lake: IcebergLake) -> None:
    publish(lake.client, [{"number": 1, "name": "x"}])
    url = as_login(lake.client.url, "pgque_reader")
    with Client(url) as reader:
        batch = SparkBatch(lake.spark, claim(reader), url)

        with pytest.raises(PermissionDenied, match="iceberg_catalog") as told:
            lake.write(batch)

        execute(lake.client, str(told.value).partition("As an administrator: ")[2])
        lake.write(batch)
    assert lake.numbers() == [1]


def test_first_runs_create_the_catalog_at_the_same_time(lake: IcebergLake) -> None:
    storage = Storage.of(lake.folder)
    together = Barrier(4)

    def first_run(_: int) -> int:
        together.wait(PATIENCE_SECONDS)
        with open_catalog(lake.client.url, "iceberg_catalog", {}, storage) as catalog:
            return len(catalog.list_namespaces())

    for _ in range(3):
        with ThreadPoolExecutor(4) as runs:
            assert list(runs.map(first_run, range(4))) == [0] * 4
        execute(lake.client, "drop schema iceberg_catalog cascade")


def execute(client: Client, statement: str) -> None:
    with psycopg.connect(client.url, autocommit=True) as connection:
        connection.execute(statement.encode())


def test_a_namespace_that_another_attempt_creates_at_the_same_time_is_used(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = SqlCatalog.create_namespace

    def too_late(catalog: SqlCatalog, namespace: str) -> None:
        create(catalog, namespace)
        with monkeypatch.context() as patch:
            patch.setattr(SqlCatalog, "namespace_exists", lambda *_: False)
            create(catalog, namespace)

    monkeypatch.setattr(SqlCatalog, "create_namespace", too_late)

    lake.store(1)

    assert lake.numbers() == [1]


def test_tables_of_two_databases_in_one_warehouse_have_folders_of_their_own(
    lake: IcebergLake, other_database: Client
) -> None:
    other = IcebergLake(other_database, lake.spark, lake.folder)
    for each in (lake, other):
        each.store(1)
    age(lake.folder)

    assert lake.maintain() == other.maintain() == []

    assert lake.numbers() == other.numbers() == [1]


def test_a_table_that_takes_the_name_of_a_renamed_one_has_a_folder_of_its_own(
    lake: IcebergLake,
) -> None:
    lake.store(1)
    lake.catalog.rename_table(TABLE, "sales.earlier")
    lake.store(2)
    age(lake.folder)

    assert lake.maintain() == []

    earlier = lake.table("sales.earlier").scan().to_arrow()
    assert (earlier["number"].to_pylist(), lake.numbers()) == ([1], [2])


def test_a_table_is_readable_wherever_its_warehouse_is(lake: IcebergLake) -> None:
    name = "it's größe a+b=c"
    folder, lake.folder = lake.folder, lake.folder / name
    lake.store(1)
    lake.store(2)

    assert lake.numbers() == [1, 2]
    assert lake.read().count() == 2
    assert [path.name for path in folder.iterdir()] == [name]


@pytest.mark.parametrize("name", ["100%", "a#b", "a?b"])
def test_a_warehouse_where_readers_would_look_elsewhere_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidArgument, match="look for the files elsewhere"):
        IcebergSink(TABLE, warehouse=tmp_path / name)


@pytest.mark.parametrize("url", ["s3://bucket/a#b", "s3://bucket/a?b", "file:///tmp/a#b"])
def test_a_url_that_stores_would_cut_is_refused_by_every_sink_of_files(url: str) -> None:
    of_directories = (ParquetSink,) if url.startswith("file:") else ()
    for sink in (DeltaSink, *of_directories, lambda url: IcebergSink(TABLE, warehouse=url)):
        with pytest.raises(InvalidArgument, match="more than a bucket and a path"):
            sink(url)


def test_a_table_whose_columns_changed_names_is_not_read_by_names(lake: IcebergLake) -> None:
    lake.store(1)
    told = r"renamed, or dropped and added again: {}"

    with lake.table().update_schema() as change:
        change.rename_column("name", "label")
    with pytest.raises(InvalidArgument, match=told.format("(name|label)")):
        lake.read()

    with lake.table().update_schema() as change:
        change.rename_column("label", "name")
    with lake.table().update_schema() as change:
        change.delete_column("name")
    with lake.table().update_schema() as change:
        change.add_column("name", StringType())
    with pytest.raises(InvalidArgument, match=told.format("name")):
        lake.read()


def test_rows_that_another_engine_deleted_by_position_are_not_read(lake: IcebergLake) -> None:
    batch = lake.batch(1, 2)
    lake.sink().write(batch, batch.payload(SCHEMA).coalesce(1))

    delete_first_row(lake.table())

    assert len(lake.numbers()) == 1
    assert [row.number for row in lake.read().collect()] == lake.numbers()


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

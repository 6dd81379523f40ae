"""Batches that replace the rows of their keys in a Delta or an Iceberg table."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from pgque_dagster.client import BatchNotOpen, Client, InvalidArgument
from pgque_dagster.spark import DeltaSink, IcebergSink, PostgresSink
from tests.support.runner.calls import at_call
from tests.support.servers.s3 import S3
from tests.support.spark import delta_tables, iceberg_tables
from tests.support.spark.attempts import next_batch
from tests.support.spark.delta_tables import read_delta
from tests.support.spark.lakes import SCHEMA, TABLE, DeltaLake, IcebergLake, of_another
from tests.support.spark.stored_tables import iceberg_catalog

UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["number"]}


@pytest.fixture(params=[DeltaLake, IcebergLake], ids=["delta", "iceberg"])
def lake(
    request: pytest.FixtureRequest, client: Client, spark: SparkSession, tmp_path: Path
) -> Any:
    client.register_consumer("orders", "another")
    return request.param(client, spark, tmp_path)


def stored(lake: Any) -> dict[int, str]:
    """The name of each number, as two readers find it; no number may be there twice."""
    tables = delta_tables if isinstance(lake, DeltaLake) else iceberg_tables
    rows = tables.same_rows(lake.table()).to_pylist()
    found = {row["number"]: row["name"] for row in rows}
    assert len(found) == len(rows) == lake.read().count()
    return found


def unused(lake: Any) -> set[Path]:
    """The files that the table does not have."""
    used = lake.counted()
    if isinstance(lake, IcebergLake):
        tasks = lake.table().scan().plan_files()
        deletes = (file.file_path for task in tasks for file in task.delete_files)
        used |= {Path(path.removeprefix("file://")) for path in deletes}
    return lake.files() - used


@pytest.mark.each_format
def test_batches_are_merged_by_key_and_another_attempt_changes_nothing(lake: Any) -> None:
    sink = lake.sink(**UPSERT)
    for texts in ("1a 2b", "", "2B 3c"):
        payloads = [{"number": int(text[0]), "name": text[1]} for text in texts.split()]
        batch = next_batch(lake.client, lake.spark, payloads)
        sink.write(batch, batch.payload(SCHEMA))
        if texts != "2B 3c":
            batch.claim.ack()
    repeated = lake.again(batch)
    sink.write(repeated, repeated.payload(SCHEMA))
    with pytest.raises(InvalidArgument, match="this claim wrote the batch before"):
        sink.write(repeated, repeated.payload(SCHEMA))

    assert stored(lake) == {1: "a", 2: "B", 3: "c"}


@pytest.mark.each_format
def test_a_merged_batch_writes_no_row_of_others(lake: Any) -> None:
    lake.store(*range(1, 50), **UPSERT)
    before = lake.counted()
    lake.store(3, 100, **UPSERT)
    assert before < lake.counted()
    assert not unused(lake)
    assert stored(lake) == dict.fromkeys([*range(1, 50), 100], "x")
    if isinstance(lake, DeltaLake):
        with pytest.raises(DeltaProtocolError, match="deletionVectors"):
            lake.table().to_pyarrow_table()

    # An attempt that adds rows again replaces those that are left of its first one.
    batch = lake.batch(7, 8)
    lake.write(batch)
    other = of_another(lake)
    lake.write(other, "number", "'other' as name", where="number = 7", **UPSERT)
    other.claim.release()
    lake.take_over(batch)
    assert [row[:2] for row in lake.rows() if row[0] in (7, 8)] == [
        *((7, "other"), (7, "x"), (8, "x"), (8, "x"))
    ]
    lake.compact()
    assert sorted(row[0] for row in lake.rows()) == [*range(1, 8), 7, 8, 8, *range(9, 50), 100]


def test_a_merge_in_an_object_store(lake: Any, s3: S3) -> None:
    is_delta, place = isinstance(lake, DeltaLake), s3.url(type(lake).__name__)
    sink: Any = (
        DeltaSink(place, storage_options=s3.options, **UPSERT)
        if is_delta
        else IcebergSink(TABLE, warehouse=place, storage_options=s3.options, **UPSERT)
    )
    for numbers in ((1, 2), (2, 3)):
        batch = lake.batch(*numbers)
        sink.write(batch, batch.payload(SCHEMA).coalesce(1))
        batch.claim.ack()
    if is_delta:
        options = {**s3.options, "aws_allow_http": "true"}
        found = read_delta(DeltaTable(place, storage_options=options))
        assert not sink.storage.create_new(f"_delta_log/{0:020}.json", b"another")
    else:
        catalog = iceberg_catalog(lake.client.url, **s3.iceberg_properties)
        found = catalog.load_table(TABLE).scan().to_arrow()
    assert sorted(found["number"].to_pylist()) == [1, 2, 3]
    read = sink.read(lake.spark) if is_delta else sink.read(lake.spark, lake.client.url)
    assert sorted(row.number for row in read.collect()) == [1, 2, 3]


def test_columns_that_a_merged_batch_lacks_are_null(lake: Any) -> None:
    lake.store(1, 2)

    lake.write(lake.batch(2, 3), "number", "1 as more", schema_evolution="add_columns", **UPSERT)

    rows = lake.arrow().sort_by("number").to_pylist()
    assert [(row["name"], row["more"]) for row in rows] == [("x", None), (None, 1), (None, 1)]


def test_a_key_without_an_equal_finds_its_row(lake: Any) -> None:
    """As Spark groups by it: -0.0 is 0.0, and NaN is NaN."""
    key = "if(number = 1, -0D, double('NaN'))"
    for name, columns in (("first", f"{key} as number"), ("second", f"abs({key}) as number")):
        lake.write(lake.batch(1, 2), columns, f"'{name}' as name", **UPSERT)

    assert lake.arrow()["name"].to_pylist() == ["second"] * 2


@pytest.mark.parametrize("sink", [DeltaSink, PostgresSink, partial(IcebergSink, warehouse="w")])
def test_a_key_that_is_a_text_is_refused(sink: Any) -> None:
    with pytest.raises(InvalidArgument) as refused:
        sink("sales.revenue", mode="upsert", key="product")
    assert str(refused.value) == (
        "key is the text 'product', not a list of columns. Write key=[\"product\"]."
    )


def test_a_stale_attempt_does_not_merge(lake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = lake.batch(1)

    at_call(
        monkeypatch,
        lake.output,
        "replace",
        lambda: lake.take_over(stale, "number", "'later' as name", **UPSERT),
    )
    with pytest.raises(BatchNotOpen):
        lake.write(stale, **UPSERT)

    assert stored(lake) == {1: "later"}
    assert not unused(lake)


def test_rows_are_found_again_after_another_batch_and_a_compaction(
    lake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.store(1, 2, **UPSERT)
    lake.store(3, 4, **UPSERT)
    batch = lake.batch(2, 3)

    def change() -> None:
        lake.write(of_another(lake), "number", "'other' as name", **UPSERT)
        lake.compact()

    at_call(monkeypatch, lake.output, "replace", change)
    lake.write(batch, "number", "'last' as name", **UPSERT)

    assert stored(lake) == {1: "other", 2: "last", 3: "last", 4: "x"}


def test_a_key_that_cannot_be_merged_by_is_refused_before_anything_is_stored(lake: Any) -> None:
    batch = lake.batch(1, 1)
    zeros = "if(monotonically_increasing_id() = 0, 0D, -0D) as number"
    for place, (key, column, told) in enumerate(
        (
            ("number", "number", r"2 rows for .* have the key number 1"),
            ("number", "nullif(number, 1) as number", "number is part .* has a null"),
            ("customer", "number", "has no column customer, which is part of the key"),
            ("number", "struct(1 as a) as number", "number, whose values have parts"),
            ("number", zeros, r"2 rows for .* have the key number -?0\.0"),
            ("number", "double('NaN') as number", "2 rows for .* have the key number nan"),
        )
    ):
        frame = batch.payload(SCHEMA).selectExpr(column, "name")
        options: dict[str, Any] = {"mode": "upsert", "key": [key]}
        sink = (
            DeltaSink(f"{lake.location}{place}", **options)
            if isinstance(lake, DeltaLake)
            else IcebergSink(f"{TABLE}{place}", warehouse=lake.folder, **options)
        )
        with pytest.raises(InvalidArgument, match=told):
            sink.write(batch, frame)
        assert lake.files() == set()


@pytest.mark.parametrize("lake", [IcebergLake], indirect=True)
def test_a_table_in_which_rows_cannot_be_found_or_marked_is_refused(lake: IcebergLake) -> None:
    lake.store(1, **UPSERT)
    with lake.table().update_schema() as update:
        update.rename_column("number", "nr")
    with pytest.raises(InvalidArgument, match=r"renamed.*, so rows cannot be found by their keys"):
        lake.write(lake.batch(1), "number as nr", "name", mode="upsert", key=["nr"])
    assert lake.arrow().num_rows == 1

    lake.drop()
    columns = pa.schema({"number": pa.int64(), "name": pa.string(), "batch_id": pa.int64()})
    place = f"file://{lake.folder}/old"
    lake.catalog.create_table(TABLE, columns, place, properties={"format-version": "1"})
    lake.adopt(lake.client.incarnation())
    with pytest.raises(InvalidArgument, match="has format version 1, and only tables of version 2"):
        lake.write(lake.batch(1), **UPSERT)

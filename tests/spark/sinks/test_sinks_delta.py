"""What only a Delta table promises: merges by key, maintenance, statistics, and its own rules."""

import json
import os
import time
import uuid
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark import DeltaSink
from pgque_dagster.spark.sinks.delta.log import stored_files
from pgque_dagster.spark.sinks.files.storage import Storage, StorageFailed
from tests.support.spark.lakes import SCHEMA, DeltaLake

OLD_SECONDS = 8 * 86400


@pytest.fixture
def lake(client: Client, spark: SparkSession, tmp_path: Path) -> DeltaLake:
    return DeltaLake(client, spark, tmp_path)


def age(folder: Path) -> None:
    """Makes all files look as if they were written long ago."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - OLD_SECONDS,) * 2)


UPSERT = {"mode": "upsert", "key": ["number"]}


def test_a_table_without_vectors_is_merged_by_deltas_library(lake: DeltaLake) -> None:
    options = {**UPSERT, "deletion_vectors": False}
    lake.store(1, 2, **options)
    lake.store(2, 3, **options)
    assert sorted(lake.table().to_pyarrow_table()["number"].to_pylist()) == [1, 2, 3]
    assert lake.files() == set()
    # The table decides, so that those of earlier versions go on.
    lake.store(3, 4, **UPSERT)
    assert sorted(lake.table().to_pyarrow_table()["number"].to_pylist()) == [1, 2, 3, 4]
    with pytest.raises(InvalidArgument, match=r"__delta_rs_x has a name that merges into .* use"):
        lake.write(lake.batch(1), "number", "1 as __delta_rs_x", **options)


def test_a_table_of_somebody_else_is_refused_until_it_is_adopted(lake: DeltaLake) -> None:
    DeltaTable.create(lake.location, schema=delta_schema())
    batch = lake.batch(1)

    with pytest.raises(InvalidArgument, match=r"adopt it: DeltaTable\(") as told:
        lake.write(batch)
    statement = str(told.value).partition("adopt it: ")[2].rstrip(".")
    eval(statement, {"DeltaTable": DeltaTable})

    lake.write(batch)
    assert lake.numbers() == [1]


def delta_schema(required: str = "") -> Schema:
    columns = {"number": "long", "name": "string", "batch_id": "long"}
    return Schema([Field(name, kind, nullable=name != required) for name, kind in columns.items()])


def test_a_table_with_a_column_that_is_not_null_is_refused(lake: DeltaLake) -> None:
    DeltaTable.create(lake.location, schema=delta_schema(required="name"))
    lake.adopt(lake.client.incarnation())

    with pytest.raises(InvalidArgument, match=r"has NOT NULL for name, which"):
        lake.write(lake.batch(1))

    assert lake.rows() == []


def test_a_table_with_rules_that_nobody_would_check_is_refused(lake: DeltaLake) -> None:
    lake.store(1)
    lake.table().alter.add_constraint({"positive": "number > 0"})

    with pytest.raises(InvalidArgument, match=r"has delta.constraints.positive, which"):
        lake.write(lake.batch(-1))


def test_a_table_that_takes_no_second_attempt_at_a_batch_is_refused(lake: DeltaLake) -> None:
    batch = lake.batch(1)
    lake.write(batch)
    lake.table().alter.set_table_properties({"delta.appendOnly": "true"})

    with pytest.raises(InvalidArgument, match=r"has delta.appendOnly, which"):
        lake.write(lake.again(batch))


def test_a_table_that_does_not_exist_is_not_maintained(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        DeltaSink(tmp_path / "table").maintain(spark)
    assert str(refused.value) == (
        f"there is no Delta table {tmp_path / 'table'}. The first stored batch creates it."
    )


def test_vacuum_removes_what_killed_attempts_left_and_files_that_were_replaced_or_united(
    lake: DeltaLake,
) -> None:
    first = lake.batch(1, 2, 3)
    lake.write(first)
    stored = next(iter(lake.files()))
    left = stored.parent.with_name(f"1-1-{32 * 'f'}") / stored.name
    left.parent.mkdir()
    left.write_bytes(stored.read_bytes())
    lake.maintain()
    lake.write(lake.again(first), where="number = 2")
    gone = lake.files()
    age(lake.folder)
    write_removals_long_ago(lake.location)

    removed = lake.maintain()

    gone -= lake.files()
    assert {Path(lake.location, path) for path in removed if path.startswith("data/")} == gone

    assert lake.files() == lake.counted()
    assert lake.numbers() == [2]


def write_removals_long_ago(location: str) -> None:
    now, earlier = (str(int((time.time() - ago) * 1000))[:6] for ago in (0, OLD_SECONDS))
    for path in Path(location, "_delta_log").glob("*.json"):
        old = path.read_text()
        path.write_text(old.replace(f'"deletionTimestamp":{now}', f'"deletionTimestamp":{earlier}'))


def test_vacuum_keeps_a_table_in_the_folder_of_another_one(lake: DeltaLake) -> None:
    inner = DeltaLake(lake.client, lake.spark, Path(lake.location))
    for each in (lake, inner):
        each.store(1)
    age(lake.folder)

    assert lake.maintain() == []

    assert lake.numbers() == inner.numbers() == [1]


def test_removed_files_are_kept_for_a_longer_retention_than_checkpoints_have(
    spark: SparkSession, tmp_path: Path
) -> None:
    location, month = str(tmp_path), timedelta(days=30)
    for mode in ("append", "overwrite"):
        write_deltalake(location, pa.table({"number": [1]}), mode=mode)  # type: ignore[call-overload]
    sink = DeltaSink(location)
    sink.maintain(spark, retention=month)
    age(tmp_path)
    write_removals_long_ago(location)
    DeltaTable(location).create_checkpoint()

    assert sink.maintain(spark, retention=month).deleted == []
    sink.maintain(spark)
    assert DeltaTable(location, version=0).to_pyarrow_table().num_rows == 1


def test_unused_files_go_also_if_a_table_is_not_compacted(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = pa.table({"number": [1, 1], "of": ["a", "b"]})
    write_deltalake(str(tmp_path), rows, partition_by=["of"])
    left = tmp_path / "left.parquet"
    left.touch()
    age(tmp_path)
    with pytest.raises(InvalidArgument, match="has partitions"):
        DeltaSink(tmp_path).maintain(spark)
    assert not left.exists()


def test_checkpoints_are_found_without_a_hint_or_with_an_old_one(tmp_path: Path) -> None:
    log = tmp_path / "_delta_log"
    for number in range(8):
        write_deltalake(str(tmp_path), pa.table({"number": [number]}), mode="append")
        if number in (2, 5):
            DeltaTable(str(tmp_path)).create_checkpoint()
    for number in range(5):
        (log / f"{number:020}.json").unlink()

    def count(version: int = 7) -> int:
        return len(stored_files(Storage.of(tmp_path), version))

    hint, checkpoint = log / "_last_checkpoint", log / f"{5:020}.checkpoint.parquet"
    for text in ('{"version":5}', '{"version":2}', '{"version":99}', "{", ""):
        hint.write_text(text)
        assert count() == 8
    hint.unlink()
    assert (count(), count(2)) == (8, 3)
    actions = pq.read_table(checkpoint)
    checkpoint.unlink()
    pq.write_table(actions.slice(0, 4), log / f"{5:020}.checkpoint.{1:010}.{2:010}.parquet")
    with pytest.raises(StorageFailed, match=r"has no file .*3\.json"):
        count()
    pq.write_table(actions.slice(4), log / f"{5:020}.checkpoint.{2:010}.{2:010}.parquet")
    assert count() == 8
    (log / f"{6:020}.checkpoint.{uuid.uuid4()}.json").touch()
    with pytest.raises(InvalidArgument, match="checkpoints of version 2"):
        count()


def test_readers_skip_files_by_statistics(lake: DeltaLake) -> None:
    batch = lake.batch(3, 7)
    frame = batch.payload(SCHEMA).selectExpr(
        "number",
        "timestamp_seconds(number) as at",
        "date_from_unix_date(number) as day",
        "if(number = 3, double('NaN'), 1D) as double",
        "nullif(number, 3) as nullable",
        "array(number) as nested",
    )

    lake.sink().write(batch, frame.coalesce(1))

    (log,) = Path(lake.location, "_delta_log").glob("*1.json")
    (added,) = [each["add"] for each in map(json.loads, log.open()) if "add" in each]
    statistics = json.loads(added["stats"])
    assert statistics["numRecords"] == 2
    assert statistics["minValues"]["number"] == 3
    assert statistics["maxValues"]["at"] == "1970-01-01T00:00:07.000000Z"
    assert statistics["maxValues"]["day"] == "1970-01-08"
    assert statistics["nullCount"]["nullable"] == 1
    assert "nested" not in statistics["nullCount"]
    scan = lake.table().to_pyarrow_table(filters=[("number", ">", 5)])
    assert scan["number"].to_pylist() == [7]


@pytest.mark.slow
def test_deltas_library_finds_every_value_by_a_condition(lake: DeltaLake) -> None:
    """Statistics never say that a value is not there, cut or rounded as they are."""
    last = chr(0x10FFFF) * 9
    for number, (kind, value) in enumerate(
        [
            *(("string", text) for text in ("a" * 100, "b" * 31 + last + "c", "c" * 5000, last)),
            ("string", last[0] * 5000),
            *(("double", float(text)) for text in ("inf", "-inf")),
            ("decimal(38,18)", Decimal("12345678901234567890.123456789012345678")),
            ("decimal(38,18)", Decimal("-0.000000000000000001")),
            ("decimal(5,2)", Decimal("999.99")),
            *(("boolean", True), ("boolean", False)),
        ]
    ):
        location = f"{lake.location}-{number}"
        frame = lake.spark.createDataFrame([(value,), (None,)], f"value {kind}")
        batch = lake.batch(1)
        for _ in range(2):
            batch = lake.again(batch)
            DeltaSink(location).write(batch, frame.coalesce(1))
        batch.claim.ack()

        found = DeltaTable(location).to_pyarrow_dataset()
        wanted = pa.scalar(value, found.schema.field("value").type)
        table = found.to_table(filter=ds.field("value") == wanted)
        assert table["value"].to_pylist() == [value], kind


@pytest.mark.parametrize("name", ["100%", "a%20b", "a\\b"])
def test_a_folder_that_deltas_library_would_look_for_elsewhere_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(InvalidArgument, match="looks for it elsewhere"):
        DeltaSink(tmp_path / name)


def test_a_table_is_read_in_a_folder_that_spark_takes_for_a_pattern(lake: DeltaLake) -> None:
    lake.location = str(lake.folder / "a[1] {b} c? d*")
    lake.store(1)

    assert lake.read().count() == 1

"""Small files of an Iceberg table are united: no row is lost or doubled, whoever is interrupted."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.spark.sinks.iceberg import maintenance
from tests.programs.signals import signalled
from tests.support.spark.lakes import SCHEMA, IcebergLake

TYPES = (
    "number",
    "cast(number as decimal(38, 10)) as decimal",
    "timestamp_micros(number) as at",
    "timestamp_ntz'1582-01-01 00:00:00' as ntz",
    "date'1582-10-10' as day",
    "X'00ff' as binary",
    "if(number = 2, null, map('a', array(named_struct('b', 1.5F)))) as nested",
)


@pytest.fixture
def lake(client: Client, spark: SparkSession, tmp_path: Path) -> IcebergLake:
    client.register_consumer("orders", "another")
    return IcebergLake(client, spark, tmp_path)


def test_values_of_each_type_stay_and_columns_that_came_later_are_null(lake: IcebergLake) -> None:
    for number in (1, 2):
        columns = (*TYPES, "'x' as later") if number == 2 else TYPES
        batch = lake.batch(number)
        frame = batch.payload(SCHEMA).selectExpr(*columns)
        lake.sink(schema_evolution="add_columns").write(batch, frame)
        batch.claim.ack()
    before = lake.read().orderBy("number").collect()
    table = sorted(lake.arrow().to_pylist(), key=lambda row: row["number"])

    lake.compact()

    assert len(lake.counted()) == 1
    assert lake.read().orderBy("number").collect() == before
    assert sorted(lake.arrow().to_pylist(), key=lambda row: row["number"]) == table
    assert [row.later for row in before] == [None, "x"]


def test_a_batch_is_not_doubled_if_its_snapshot_is_forgotten_as_well(lake: IcebergLake) -> None:
    lake.store(1)
    batch = lake.batch(2, 3)
    lake.write(batch)
    lake.compact()
    table = lake.table()
    assert len(table.current_snapshot().manifests(table.io)) == 1
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
    assert len(lake.table().snapshots()) == 1

    lake.take_over(batch)

    assert lake.numbers() == [1, 2, 3]


def before_the_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> list[int]:
    """Has something happen once when the copies are made. Returns the number of commits tried."""
    entries_of, calls = maintenance.entries_of, []

    def entries(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            step()
        return entries_of(*arguments)

    monkeypatch.setattr(maintenance, "entries_of", entries)
    return calls


def test_the_commit_is_repeated_if_a_batch_comes_first(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.store(1)
    lake.store(2)
    commits = before_the_commit(monkeypatch, lambda: lake.store(3))

    lake.compact()

    assert len(commits) == 2
    assert lake.numbers() == [1, 2, 3]
    assert len(lake.counted()) == 2


def test_nothing_is_replaced_if_another_attempt_replaced_one_of_the_files(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.store(1)
    batch = lake.batch(2, 3)
    lake.write(batch)
    before_the_commit(monkeypatch, lambda: lake.write(lake.again(batch), where="number = 3"))

    assert lake.sink().maintain(lake.spark, lake.client.url).by == 0

    assert lake.numbers() == [1, 3]
    assert list(lake.folder.rglob("compacted-*/*")) == []


@pytest.mark.slow
def test_a_compaction_that_is_killed_leaves_the_table_as_it_is(
    lake: IcebergLake, tmp_path: Path
) -> None:
    lake.store(1)
    batch = lake.batch(2, 3)
    lake.write(batch)

    arguments = (lake.client.url, str(lake.folder))
    with signalled("iceberg_compacting", *arguments, log=tmp_path / "log"):
        assert len(list(lake.folder.rglob("compacted-*/*"))) == 1
        assert lake.numbers() == [1, 2, 3]
    lake.take_over(batch, "number + 10 as number", "name")
    lake.compact()
    assert lake.numbers() == [1, 12, 13]


def test_a_table_that_is_not_understood_is_left_as_it_is(lake: IcebergLake) -> None:
    lake.store(1)
    lake.store(2)
    with lake.table().update_schema() as change:
        change.rename_column("name", "label")

    with pytest.raises(InvalidArgument, match=r"renamed.*not compacted"):
        lake.maintain()

    assert lake.numbers() == [1, 2]


def test_as_many_snapshots_stay_as_commits_stay_quick_with(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_SNAPSHOTS", 2)
    lake.store(1)
    (tagged,) = (each.snapshot_id for each in lake.table().snapshots())
    for number in range(2, 6):
        lake.store(number)
    lake.table().manage_snapshots().create_tag(tagged, "kept").commit()
    newest = [each.snapshot_id for each in lake.table().snapshots()[-2:]]
    files = set(lake.folder.rglob("metadata/*.avro"))

    lake.maintain()

    table = lake.table()
    assert {tagged, *newest} <= {each.snapshot_id for each in table.snapshots()}
    assert lake.numbers() == [1, 2, 3, 4, 5]
    then = table.scan(snapshot_id=tagged).to_arrow()
    assert then["number"].to_pylist() == [1]
    assert len(files - set(lake.folder.rglob("metadata/*.avro"))) >= 2
    for each in table.snapshots():
        assert each.manifests(table.io)


def test_a_batch_that_comes_while_snapshots_are_forgotten_is_kept(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_SNAPSHOTS", 1)
    lake.store(1)
    lake.store(2)
    descriptions, calls = maintenance._descriptions, []

    def described(*arguments: Any) -> set[str]:
        calls.append(1)
        if len(calls) == 1:
            lake.store(3)
        return descriptions(*arguments)

    monkeypatch.setattr(maintenance, "_descriptions", described)

    lake.maintain()

    assert lake.numbers() == [1, 2, 3]
    lake.store(4)
    assert lake.numbers() == [1, 2, 3, 4]

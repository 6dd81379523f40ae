"""An Iceberg table is maintained: no row is lost or doubled, and only what nobody needs goes."""

import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, Client, InvalidArgument
from pgque_dagster.spark.sinks.iceberg import maintenance
from tests.programs.signals import signalled
from tests.support.queues.events import claim, publish
from tests.support.runner.calls import at_call
from tests.support.spark.lakes import OLD_SECONDS, SCHEMA, IcebergLake, age

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


def before_the_commit(monkeypatch: pytest.MonkeyPatch, step: Callable[[], object]) -> list[Any]:
    """Has something happen once when the copies are made. Returns as many as commits are tried."""
    return at_call(monkeypatch, maintenance, "entries_of", step)


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
    at_call(monkeypatch, maintenance, "_descriptions", lambda: lake.store(3))

    lake.maintain()

    assert lake.numbers() == [1, 2, 3]
    lake.store(4)
    assert lake.numbers() == [1, 2, 3, 4]


# A sweep of the table's folder: what dead attempts left goes, and nothing else.


def ended(lake: IcebergLake, how: str) -> Batch:
    """An attempt that ended in one of these ways, or goes on."""
    publish(lake.client, [{"number": 2}])
    ttl = timedelta(milliseconds=1 if how == "out of its lease" else 600_000)
    claimed = lake.client.claim("orders", "revenue", owner="a test", ttl=ttl)
    assert claimed is not None
    if how == "acked":
        claimed.ack()
    elif how == "taken over":
        claim(lake.client)
    elif how == "released":
        claimed.release()
    elif how == "unregistered":
        lake.client.unregister_consumer("orders", "revenue", skip=True)
    return claimed


def leave(lake: IcebergLake, claimed: Batch, seconds: float = OLD_SECONDS) -> Path:
    """A file that an attempt wrote some time ago, and did not publish."""
    attempt = f"{claimed.batch_id}-{claimed.lease.epoch}-{uuid.uuid4().hex}"
    (table,) = (lake.folder / "sales").iterdir()
    path = table / "data" / attempt / f"part-{uuid.uuid4().hex}.parquet"
    path.parent.mkdir()
    path.touch()
    age(path.parent, seconds)
    return path


def relative(path: Path) -> str:
    return "/".join(path.parts[-3:])


def test_old_files_of_attempts_that_ended_are_swept(lake: IcebergLake) -> None:
    lake.store(1)
    for how in ("acked", "released", "taken over", "unregistered"):
        left = leave(lake, ended(lake, how))

        assert lake.maintain() == [relative(left)], how

        assert not left.exists()
    assert lake.numbers() == [1]


def test_files_of_an_attempt_that_may_still_publish_are_kept(lake: IcebergLake) -> None:
    lake.store(1)
    # Out of its lease, an attempt may still renew it, because nobody took the batch over.
    for how in ("out of its lease", "leased"):
        left = leave(lake, ended(lake, how))

        assert lake.maintain() == [], how

        left.unlink()


def test_young_files_and_those_of_others_are_kept(lake: IcebergLake) -> None:
    lake.store(1)
    young = leave(lake, ended(lake, "acked"), seconds=6 * 86400)
    foreign = young.with_name("by-hand.parquet")
    foreign.touch()
    os.utime(foreign, (0, 0))

    assert lake.maintain() == []
    older = timedelta(days=5)
    assert lake.maintain(retention=older) == [relative(young)]

    assert foreign.exists()


def test_files_of_snapshots_that_the_table_still_has_are_kept(lake: IcebergLake) -> None:
    lake.store(1)
    first = lake.batch(2, 3)
    before = lake.write(first).version
    second = lake.again(first)
    lake.write(second, where="number = 3")
    second.claim.ack()
    age(lake.folder)

    assert lake.maintain() == []
    then = lake.table().scan(snapshot_id=before).to_arrow()
    assert sorted(then["number"].to_pylist()) == [1, 2, 3]

    lake.table().maintenance.expire_snapshots().by_id(before).commit()
    kept = lake.table().snapshots()
    swept = lake.maintain()

    assert {path.split("/")[1].split("-")[1] for path in swept} == {str(first.claim.lease.epoch)}
    assert lake.numbers() == [1, 3]
    assert lake.table().snapshots() == kept


def test_files_that_are_published_while_the_sweep_looks_are_kept(
    lake: IcebergLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.store(1)

    def swept() -> None:
        age(lake.folder)
        assert lake.maintain() == []

    at_call(monkeypatch, lake.output, "replace", swept)
    lake.store(2)

    assert lake.maintain() == []
    assert lake.numbers() == [1, 2]


def test_a_sweep_that_could_remove_what_is_needed_is_refused(lake: IcebergLake) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no Iceberg table sales.revenue"):
        lake.maintain()
    with pytest.raises(InvalidArgument, match="at least a day"):
        lake.maintain(retention=timedelta(hours=1))
    lake.store(1)
    left = leave(lake, ended(lake, "acked"))
    lake.adopt("another")

    with pytest.raises(InvalidArgument, match=r"batches of incarnation another"):
        lake.maintain()

    assert left.exists()

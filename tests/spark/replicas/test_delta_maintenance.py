"""Maintenance of Delta tables with deletion vectors, beside batches and other engines."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pgque_dagster.spark.sinks import compaction
from pgque_dagster.spark.sinks.delta import maintenance, replacing, sink
from tests.support.replicas.delta import T, folder, prepare, vector_files, vectors
from tests.support.replicas.replication import DeltaReplication
from tests.support.runner.calls import at_call


def test_maintenance_keeps_the_vector_files_that_readers_may_need(
    delta: DeltaReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(delta)
    for number in (1, 2, 3):
        delta.follow(f"delete from t where id = {number}")
    (in_use,) = [f"u{each['pathOrInlineDv']}" for each in vectors(delta)]
    files = vector_files(delta)
    assert len(files) == 3
    left = folder(delta) / "deletion_vector_0d3c2b1a-0000-4000-8000-000000000000.bin"
    left.write_bytes(b"\x01")
    old = (datetime.now(UTC) - timedelta(days=30)).timestamp()
    for path in folder(delta).glob("*.bin"):
        os.utime(path, (old, old))

    # Their files were removed a moment ago, so readers may be at those versions.
    deleted = delta.sink(T).maintain(delta.spark, delta.url).deleted
    assert list(deleted) == [left.name]
    assert vector_files(delta) == files
    delta.check()

    later = sink.now() + 8 * 86_400_000
    monkeypatch.setattr(sink, "now", lambda: later)
    delta.follow("insert into t values (20, 1)")
    delta.sink(T).maintain(delta.spark, delta.url)
    assert in_use
    delta.check()


def test_a_compaction_while_rows_are_found_loses_nothing(
    delta: DeltaReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(delta)
    for number in range(3):
        delta.follow(
            f"update t set v = 2 where id = {number}; insert into t values (1{number}0, 1)"
        )

    def compact() -> None:
        assert delta.sink(T).maintain(delta.spark, delta.url).by == 1

    found = at_call(monkeypatch, replacing, "find_positions", compact, after=True)
    delta.follow("update t set v = 3 where id in (2, 3); delete from t where id = 110")
    assert [len(each) for each in found] == [3, 1]
    delta.check()
    assert len(delta.copied) == 1
    # The file of the attempt on the older version is removed.
    referenced = {vector["pathOrInlineDv"] for vector in vectors(delta)}
    assert len(referenced) == 1


@pytest.mark.parametrize("deleted", ["id % 3 = 0", "true"])
def test_rows_that_are_deleted_while_a_file_is_written_anew_stay_deleted(
    delta: DeltaReplication, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    # A file with many deleted rows is written anew however large it is.
    monkeypatch.setattr(compaction, "_LARGE_BYTES", 1)
    prepare(delta, 20)
    delta.follow("update t set v = 2 where id % 5 = 0")
    change = f"update t set v = 3 where id = 7; delete from t where {deleted}"
    commits = at_call(monkeypatch, maintenance, "commit", lambda: delta.follow(change))
    done = delta.sink(T).maintain(delta.spark, delta.url)
    assert len(commits) == (1 if deleted == "true" else 2)
    assert (done.replaced, done.by) == ((0, 0) if deleted == "true" else (1, 1))
    delta.check()
    delta.follow_and_check("update t set v = 4; insert into t values (0, 1)")
    assert len(delta.copied) == 1


def test_rows_that_are_restored_while_a_file_is_written_anew_are_there(
    delta: DeltaReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(delta)
    before = delta.table(T).version()
    delta.follow("delete from t where id < 5")
    at_call(monkeypatch, maintenance, "commit", lambda: delta.table(T).restore(before))
    assert delta.sink(T).maintain(delta.spark, delta.url).replaced == 0
    assert len(delta.arrow(T)) == 10


def test_a_compaction_that_a_batch_overtakes_loses_nothing(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.follow("insert into t values (20, 1)")
    earlier = delta.table(T)
    delta.follow("delete from t where id = 3")
    with pytest.raises(Exception, match=r"(?i)concurrent|conflict"):
        earlier.optimize.compact()
    delta.check()


@pytest.mark.parametrize("text", ["INTERVAL 30 DAYS", "30 days", "interval 30 days"])
def test_a_longer_retention_counts_in_each_form_that_spark_reads(tmp_path: Path, text: str) -> None:
    """Delta's library takes the others for 7 days, also in checkpoints."""
    write_deltalake(str(tmp_path), pa.table({"number": [1]}))
    name = "delta.deletedFileRetentionDuration"
    table = DeltaTable(str(tmp_path))
    table.alter.set_table_properties({name: text})
    assert maintenance.keep_removed(table, timedelta(days=7)) == timedelta(days=30)
    assert DeltaTable(str(tmp_path)).metadata().configuration[name] == "interval 30 days"

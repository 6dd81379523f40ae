"""Delta replicas with deletion vectors: a batch writes its changes, and others read them."""

import base64
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures
from pyroaring import BitMap64

from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.spark.replicas.location import DeltaReplicas
from pgque_dagster.spark.sinks.files.storage import StorageFailed
from tests.support.replicas.delta import T, actions, folder, prepare, vector_files, vectors
from tests.support.replicas.replication import DeltaReplication
from tests.support.spark.delta_tables import read_delta, read_delta_by_duckdb


def commit(delta: DeltaReplication, change: Callable[[dict[str, Any]], None]) -> None:
    """Commits the newest version's files with vectors anew, as another engine may do."""
    found = [each["add"] for each in actions(delta) if "deletionVector" in each.get("add", {})]
    old = [{x: each[x] for x in ("path", "size", "deletionVector")} for each in found]
    for each in found:
        change(each)
    lines = [
        {"commitInfo": {"operation": "OPTIMIZE"}},
        *({"remove": {**each, "dataChange": False, "deletionTimestamp": 1}} for each in old),
        *({"add": {**each, "dataChange": False}} for each in found),
    ]
    path = folder(delta) / f"_delta_log/{delta.table(T).version() + 1:020}.json"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))


@pytest.mark.parametrize(
    "deletes", ["hard", *(pytest.param(x, marks=pytest.mark.slow) for x in ("soft", "history"))]
)
def test_a_batch_writes_its_changes_and_not_the_table(
    delta: DeltaReplication, deletes: Any
) -> None:
    delta.keep(deletes)
    prepare(delta, 10_000)
    (before,) = folder(delta).glob("data/*/*.parquet")
    table_size = before.stat().st_size

    for batch in range(2):
        delta.sql(f"update t set v = 2 where id % 100 = {batch}")
        delta.follow(f"delete from t where id = {batch + 7}; insert into t values ({-batch}, 1)")
        delta.check() if deletes == "hard" else None
        if deletes != "soft":
            (vector,) = [x for x in vectors(delta) if x["cardinality"] > 90]
            assert vector["cardinality"] == (batch + 1) * 101
        added = [each["add"] for each in actions(delta) if "add" in each]
        assert sum(each["size"] for each in added if "deletionVector" not in each) < table_size / 10

    assert delta.verify().is_equal
    files = set(folder(delta).glob("data/*/*.parquet"))
    assert before in files
    # The keys of batches are removed.
    assert {str(path) for path in files} == delta.files(T)
    assert len(delta.copied) == 1


def test_files_without_rows_are_removed_from_the_table(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.follow("update t set v = v + 1")
    delta.follow("update t set v = v + 1 where id > 5")
    assert len(delta.files(T)) == 2
    delta.follow("delete from t where id > 5; update t set v = 0")
    assert len(delta.files(T)) == 1
    assert not vectors(delta)
    delta.check()


def test_statistics_and_bounds_hold_for_files_with_vectors(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.follow("delete from t where id in (1, 10)")
    (added,) = [each["add"] for each in actions(delta) if "add" in each]
    statistics = json.loads(added["stats"])
    assert statistics["numRecords"] == 10
    assert statistics["tightBounds"] is False


def test_keys_with_cut_statistics_are_found(delta: DeltaReplication) -> None:
    """Two values of `tests/spark/sinks/test_positions.py`, as the log has their bounds."""
    long = ["repeat('b', 100) || 'c'", "repeat('b', 31) || repeat(U&'\\+10FFFF', 9)"]
    for place, value in enumerate(long):
        delta.sql(f"create table t{place} (k text, at timestamptz, v int, primary key (k, at))")
        delta.sql(f"insert into t{place} values ({value}, '1883-11-18 12:03:58+00', 1)")
        delta.capture(f"public.t{place}")
    delta.catch_up()
    for place in range(len(long)):
        delta.sql(f"update t{place} set v = 2")
    delta.follow_and_check()
    assert all(len(delta.files(f"public.t{place}")) == 1 for place in range(len(long)))


def test_repeated_rows_are_replaced_by_one(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.repeat_rows(T)
    delta.follow("update t set v = 2 where id <= 5")
    assert [row["id"] for row in delta.replica(T)].count(3) == 1
    delta.follow_and_check("update t set v = 2")


def test_a_file_without_statistics_is_searched(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.follow("delete from t where id = 1")
    commit(delta, lambda add: add.update(stats='{"numRecords":10}'))
    delta.follow("delete from t where id = 2")
    commit(delta, lambda add: add.pop("stats"))
    delta.follow("update t set v = 3 where id = 5")
    assert len(delta.copied) == 1
    delta.check()


def inline(delta: DeltaReplication, add: dict[str, Any]) -> None:
    payload = struct.pack("<I", 1681511377) + BitMap64([0]).serialize()
    text = base64.b85encode(payload, pad=True).decode()
    python = "".join(map(chr, base64._b85alphabet))  # type: ignore[attr-defined]
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    add["deletionVector"] = {
        "storageType": "i",
        "pathOrInlineDv": text.translate(str.maketrans(python, z85)),
        "sizeInBytes": len(payload),
        "cardinality": 1,
    }


def absolute(delta: DeltaReplication, add: dict[str, Any]) -> None:
    (name,) = vector_files(delta)
    moved = delta.folder / "elsewhere.bin"
    (folder(delta) / name).rename(moved)
    vector = {**add["deletionVector"], "storageType": "p", "pathOrInlineDv": f"file://{moved}"}
    add["deletionVector"] = vector


@pytest.mark.parametrize("change", [inline, pytest.param(absolute, marks=pytest.mark.slow)])
def test_vectors_of_other_engines_are_united(
    delta: DeltaReplication, change: Callable[[DeltaReplication, dict[str, Any]], None]
) -> None:
    prepare(delta)
    delta.follow("delete from t where id = 1")
    commit(delta, lambda add: change(delta, add))
    assert len(read_delta(delta.table(T))) == 9
    delta.follow("delete from t where id = 3; update t set v = 2 where id = 4")
    assert [vector["cardinality"] for vector in vectors(delta)] == [3]
    assert len(delta.copied) == 1
    delta.check()


def test_checkpoints_have_the_vectors(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.table(T).alter.set_table_properties({"delta.checkpointInterval": "2"})
    for number in range(1, 6):
        delta.follow(f"update t set v = 5 where id = {number}")
    log = folder(delta) / "_delta_log"
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    assert len(checkpoints) >= 2
    # Older versions are then only in checkpoints.
    for version in range(int(checkpoints[-1].name[:20])):
        (log / f"{version:020}.json").unlink()
    delta.check()
    delta.follow_and_check("delete from t where id < 4")
    version = int(checkpoints[-1].name[:20]) + 1
    earlier = DeltaTable(str(folder(delta)), version=version)
    found = read_delta_by_duckdb(str(folder(delta)), version)
    assert sorted(found.to_pylist(), key=repr) == sorted(read_delta(earlier).to_pylist(), key=repr)
    rows = delta.sink(T).read(delta.spark, version)  # type: ignore[call-arg]
    assert rows.count() == found.num_rows == 10


# Batches of replicas without vectors are in test_lake.py, too.
@pytest.mark.parametrize(
    "deletes", ["hard", *(pytest.param(x, marks=pytest.mark.slow) for x in ("soft", "history"))]
)
def test_without_vectors_older_readers_read_the_table(
    delta: DeltaReplication, deletes: Any
) -> None:
    delta.target = DeltaReplicas(str(delta.folder), deletes=deletes, deletion_vectors=False)
    prepare(delta)
    delta.follow("update t set v = 2 where id = 3; delete from t where id = 4")
    assert not vectors(delta)
    table = delta.table(T)
    assert "deletionVectors" not in (table.protocol().reader_features or ())
    assert table.to_pyarrow_table().num_rows == {"hard": 9, "soft": 10, "history": 11}[deletes]

    # A table that was made so goes on, until somebody changes it.
    delta.target = DeltaReplicas(str(delta.folder), deletes=deletes)
    delta.follow("update t set v = 3 where id = 3")
    assert not vectors(delta)
    table = delta.table(T)
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    delta.follow("update t set v = 4 where id = 5")
    assert [vector["cardinality"] for vector in vectors(delta)] == [1]
    assert len(delta.copied) == 1


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(Path.unlink, marks=pytest.mark.slow),
        lambda path: path.write_bytes(b"\x01" * 99),
    ],
)
def test_a_lost_vector_file_stops_the_table_until_it_is_repaired(
    delta: DeltaReplication, damage: Callable[[Path], object]
) -> None:
    prepare(delta)
    delta.follow("delete from t where id = 1")
    (name,) = vector_files(delta)
    damage(folder(delta) / name)
    with pytest.raises(StorageFailed, match=r"deletion.vector.*(No such file|is damaged)"):
        delta.follow("delete from t where id = 2")
    delta.repair()
    delta.catch_up()
    assert "cannot be compared" in delta.copied[-1]
    delta.check()


def test_an_unknown_feature_is_refused(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.follow("delete from t where id = 1")
    (protocol,) = [each["protocol"] for each in actions(delta, 0) if "protocol" in each]
    protocol["readerFeatures"].append("typeWidening")
    protocol["writerFeatures"].append("typeWidening")
    path = folder(delta) / f"_delta_log/{delta.table(T).version() + 1:020}.json"
    lines: Sequence[dict[str, Any]] = [
        {"commitInfo": {"operation": "UPGRADE PROTOCOL"}},
        {"protocol": protocol},
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    with pytest.raises(StorageFailed, match="TypeWidening"):
        delta.follow("delete from t where id = 2")
    with pytest.raises(InvalidArgument, match="needs a reader that knows typeWidening"):
        delta.sink(T).read(delta.spark)  # type: ignore[call-arg]

"""The files of a copy in parts become files of the replica, and no row is written twice."""

import json
import os
from collections import Counter
from dataclasses import replace

import pytest
from pyiceberg.types import LongType

from pgque_dagster.client.replicas.deletes import Deletes
from pgque_dagster.spark.replicas import lake as lake_module
from pgque_dagster.spark.replicas.location import DeltaReplicas, LakeReplicas
from tests.support.replicas.faults import Faults, Killed, die
from tests.support.replicas.parts import TABLE, copy_in_parts, left_behind, run, until_copied
from tests.support.replicas.replication import (
    DeltaReplication,
    IcebergReplication,
    LakeReplication,
    with_columns_of,
)
from tests.support.spark.delta_tables import read_delta_by_duckdb
from tests.support.spark.iceberg_tables import by_duckdb
from tests.support.spark.lakes import age

# In parts that are read and in those that are not: a row stays, moves, goes and comes back.
CHANGES = """
update t set n = -1 where id in (1, 15);
update t set id = id + 100 where id in (2, 14);
delete from t where id in (3, 13);
delete from t where id = 4;
insert into t values (4, 'again'), (50, 'new');
"""


def of_parts(table: LakeReplication) -> set[str]:
    """The names of the files of copies in parts."""
    records = (json.loads(path.read_text()) for path in left_behind(table))
    groups = [group for record in records for group in record.get("groups", ())]
    return {file["path"].rpartition("/")[2] for group in groups for file in group["files"]}


def names(table: LakeReplication) -> set[str]:
    return {each.rpartition("/")[2] for each in table.files("public.t")}


def on_disk(table: LakeReplication) -> set[str]:
    return {path.name for path in table.folder.rglob("*.parquet")}


def age_records(table: LakeReplication) -> None:
    """Makes copies look as if no run had continued them lately."""
    for path in left_behind(table):
        os.utime(path, (0, 0))


def by_position(target: LakeReplicas, *, value: bool) -> LakeReplicas:
    if isinstance(target, DeltaReplicas):
        return replace(target, deletion_vectors=value)
    return replace(target, merge_on_read=value)


@pytest.mark.parametrize(
    "deletes", ["hard", pytest.param("soft", marks=pytest.mark.slow), "history"]
)
def test_rows_that_change_meanwhile_are_deleted_from_the_files_of_parts(
    table: LakeReplication, deletes: Deletes
) -> None:
    table.keep(deletes)
    run(table)
    table.sql(CHANGES)
    until_copied(table)
    assert table.live("public.t") == table.replica("public.t")
    source = table.source("public.t")
    assert with_columns_of(table.replica("public.t"), source) == source
    assert bool(names(table) & of_parts(table)) == (deletes != "history")
    table.follow("update t set n = -2; delete from t where id = 50")
    assert len(table.live("public.t")) == len(source) - 1


def test_without_deletes_by_position_no_reader_has_to_know_them(table: LakeReplication) -> None:
    table.target = by_position(table.target, value=False)
    run(table)
    table.sql(CHANGES)
    until_copied(table)
    table.check()
    if isinstance(table, IcebergReplication):
        assert not any(task.delete_files for task in table.table("public.t").scan().plan_files())
        assert names(table) & of_parts(table)
    else:
        assert isinstance(table, DeltaReplication)
        assert "deletionVectors" not in (table.table("public.t").protocol().reader_features or ())


def test_an_altered_table_gets_its_columns_with_the_files(table: LakeReplication) -> None:
    until_copied(table)
    (record,) = [each for each in table.commits("public.t") if each]
    assert names(table) == of_parts(table), "a copy without changes adds no file"
    assert record["copied"]
    table.sql("alter table t alter n type text, alter small type bigint")
    table.sql("comment on column t.v is 'told'")
    run(table)
    table.sql("update t set n = 'changed' where id % 3 = 0")
    until_copied(table)
    table.check()
    assert names(table) & of_parts(table)


@pytest.mark.slow
def test_an_emptied_table_is_replaced(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_copied(table)
    before = names(table)
    monkeypatch.setattr(lake_module, "_REPAIRED", -1)
    # A batch would follow a TRUNCATE alone.
    table.sql("truncate t; insert into t select n, 'after' from generate_series(1, 5) n")
    table.sql("alter table t add more int default 7")
    until_copied(table)
    table.check()
    assert not before & names(table)
    assert names(table) <= of_parts(table)


def test_files_with_other_ids_of_columns_are_not_published(
    iceberg: IcebergReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.begin(TABLE)
    copy_in_parts(monkeypatch)
    iceberg.sql("alter table t add more int default 7")
    run(iceberg)
    with iceberg.table("public.t").update_schema() as change:
        change.add_column("other", LongType())
    until_copied(iceberg)
    iceberg.check()


@pytest.mark.parametrize(
    ("point", "most"),
    [
        ("after commit", -1),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("before commit", 1_000_000),
                ("before commit", -1),
                ("after commit", 1_000_000),
            )
        ),
    ],
)
def test_an_attempt_that_is_killed_is_repeated_with_the_same_files(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch, point: str, most: int
) -> None:
    # Below 0, the next attempt replaces all files.
    monkeypatch.setattr(lake_module, "_REPAIRED", most)
    copy_in_parts(monkeypatch, seconds=60)
    faults = Faults(table, monkeypatch)

    for number in range(2):
        table.tick()
        faults.set(point, 0, die)
        with pytest.raises(Killed):
            table.run()
        assert faults.has_fired
        table.end_leases()
        table.sql(f"update t set n = {number} where id = {1 + number}; delete from t where id = 16")
        table.sql("insert into t values (16, 'again')")
    age(table.folder)
    table.sink("public.t").maintain(table.spark, table.url)
    faults.clear()
    until_copied(table)
    table.check()
    assert len([each for each in table.copied if "copying public.t in parts" in each]) == 1
    assert on_disk(table) >= names(table)
    if isinstance(table, DeltaReplication):
        for path in (table.folder / "public" / "t" / "_delta_log").glob("*.json"):
            actions = [json.loads(line) for line in path.read_text().splitlines()]
            both = Counter(
                (each["path"], (each.get("deletionVector") or {}).get("pathOrInlineDv"))
                for action in actions
                for kind, each in action.items()
                if kind in ("add", "remove")
            )
            assert set(both.values()) <= {1}


def test_maintenance_keeps_published_files_and_removes_abandoned_ones(
    table: LakeReplication,
) -> None:
    run(table)
    abandoned = of_parts(table)
    table.repair()
    table.sink("public.t").maintain(table.spark, table.url)
    table.sql(CHANGES)
    until_copied(table)
    table.check()
    before, rows = names(table), table.replica("public.t")
    version = (
        table.table("public.t").version()
        if isinstance(table, DeltaReplication)
        else table.table("public.t").metadata.current_snapshot_id  # type: ignore[attr-defined]
    )
    age(table.folder)
    age_records(table)
    kept = table.sink("public.t").maintain(table.spark, table.url)
    assert left_behind(table) == []
    assert on_disk(table) >= abandoned
    age(table.folder)
    table.sink("public.t").maintain(table.spark, table.url)
    assert not on_disk(table) & abandoned
    assert kept.replaced > 0
    assert before - names(table)
    table.check()
    place = table.folder / "public" / "t"
    if isinstance(table, DeltaReplication):
        found = read_delta_by_duckdb(str(place), version)
    else:
        assert isinstance(table, IcebergReplication)
        at = table.table("public.t").metadata_location.removeprefix("file://")
        found = by_duckdb(f"select * from iceberg_scan('{at}', snapshot_from_id = {version})")
    assert {row["id"] for row in found.to_pylist()} == {row["id"] for row in rows}
    assert before <= on_disk(table)


@pytest.mark.slow
def test_files_of_a_copy_that_goes_on_stay(table: LakeReplication) -> None:
    run(table)
    age(table.folder)
    table.sink("public.t").maintain(table.spark, table.url)
    parts = of_parts(table)
    until_copied(table)
    assert parts < names(table)
    table.check()

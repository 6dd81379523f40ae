"""Iceberg replicas whose changed rows are deleted by position, as other engines read them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import DATA_FILE_TYPE, DataFileContent, ManifestContent
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.table import Table
from pyiceberg.types import IntegerType
from pyroaring import BitMap64

from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas.outcome import Apart
from pgque_dagster.client.replicas.spec import TableSpec
from pgque_dagster.spark.replicas import iceberg as replicas
from pgque_dagster.spark.replicas.location import IcebergReplicas
from pgque_dagster.spark.sinks.files.storage import Storage, StorageFailed
from pgque_dagster.spark.sinks.iceberg import commit, maintenance, snapshot
from pgque_dagster.spark.sinks.iceberg.commit import RECORD, summary_of
from pgque_dagster.spark.sinks.iceberg.deletes import write_positions
from pgque_dagster.spark.sinks.iceberg.snapshot import commit_snapshot
from pgque_dagster.spark.sinks.iceberg.table_files import planned, root_of
from tests.support.replicas.replication import IcebergReplication
from tests.support.runner.calls import at_call
from tests.support.servers.s3 import s3_server
from tests.support.spark.iceberg_tables import by_duckdb
from tests.support.spark.lakes import iceberg_catalog

ROWS = 1_000


@pytest.fixture
def table(iceberg: IcebergReplication) -> IcebergReplication:
    """A replica of 1,000 rows in one file."""
    iceberg.sql("create table t (id int primary key, v int)")
    iceberg.begin(f"insert into t select n, 0 from generate_series(1, {ROWS}) n")
    return iceberg


def follow(table: IcebergReplication, script: str) -> dict[str, int]:
    """Changes the source and the replica. Returns the counts of the new snapshot."""
    table.follow_and_check(script)
    newest = table.table("public.t").current_snapshot()
    counts = {key: int(x) for key, x in summary_of(newest).items() if x.isdigit()}
    rows = counts["total-records"] - counts["total-position-deletes"]
    assert rows == len(table.source("public.t"))
    assert counts["total-delete-files"] == len(delete_files(table))
    assert counts["total-data-files"] == len(planned(table.table("public.t")))
    return counts


def delete_files(table: IcebergReplication) -> set[Entry]:
    return delete_files_of(table.table("public.t"))


def delete_files_of(table: Table) -> set[Entry]:
    return {file for task in planned(table) for file in task.delete_files}


def publish(table: IcebergReplication, *added: Entry, as_ours: bool = True) -> None:
    """Commits files of another engine, as a change of rows or as one that changes none."""
    found = table.table("public.t")
    newest = found.current_snapshot()
    record = {RECORD: summary_of(newest)[RECORD]} if as_ours else {}
    commit_snapshot(found, found.metadata, added=added, gone=(), summary=record)


def positions(table: IcebergReplication, *places: int) -> Entry:
    """A file of deletes of rows of the first data file."""
    found = table.table("public.t")
    (first, *_) = sorted(planned(found), key=lambda task: -task.file.record_count)
    storage = Storage.of(found.location().removeprefix("file://"))
    path = first.file.file_path
    return write_positions(storage, root_of(found), "data/other", path, BitMap64(places), 0)


def with_values(entry: Entry, **values: Any) -> Entry:
    """The same file with other facts."""
    facts = {field.name: getattr(entry, field.name) for field in DATA_FILE_TYPE[2].fields}
    return Entry.from_args(**{**facts, **values})


def test_a_batch_writes_its_changes_and_not_the_file(iceberg: IcebergReplication) -> None:
    iceberg.begin(
        "create table t (id int primary key, v int, w text);"
        "insert into t select n, 0, md5(n::text) from generate_series(1, 5000) n"
    )
    before = {path: path.stat().st_size for path in iceberg.folder.rglob("*") if path.is_file()}
    counts = follow(iceberg, "update t set v = 1 where id % 500 = 7")
    assert counts["added-position-deletes"] == counts["added-records"] == 10
    new = [path.stat().st_size for path in iceberg.folder.rglob("*") if path not in before]
    assert sum(size for size in new if size) < 100_000 < max(before.values())


def test_the_data_file_of_deletes_is_named_for_each_engine(table: IcebergReplication) -> None:
    follow(table, "update t set v = 1 where id = 5")
    found = table.table("public.t")
    (manifest,) = (
        each
        for each in found.current_snapshot().manifests(found.io)  # type: ignore[union-attr]
        if each.content == ManifestContent.DELETES
    )
    path = manifest.manifest_path.removeprefix("file://")
    rows = by_duckdb(f"select data_file.referenced_data_file as it from read_avro('{path}')")
    assert set(rows["it"].to_pylist()) & table.files("public.t")


def test_a_file_without_rows_is_removed_with_its_deletes(table: IcebergReplication) -> None:
    follow(table, "insert into t select n, 1 from generate_series(2001, 2010) n")
    follow(table, "delete from t where id between 2001 and 2004")
    assert len(delete_files(table)) == 1
    counts = follow(table, "delete from t where id > 2004")
    assert (counts["deleted-data-files"], counts["removed-delete-files"]) == (1, 1)
    assert delete_files(table) == set()


@pytest.mark.slow
def test_a_data_file_has_few_files_of_deletes_after_many_batches(
    table: IcebergReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "_SMALL_MANIFESTS", 4)
    for number in range(1, 8):
        follow(table, f"update t set v = 1 where id between {number * 10} and {number * 10 + 4}")
    assert len(delete_files(table)) <= 3
    found = table.table("public.t")
    assert len(found.current_snapshot().manifests(found.io)) <= 8  # type: ignore[union-attr]


def test_without_it_files_are_replaced_and_deletes_that_are_there_go(
    table: IcebergReplication,
) -> None:
    follow(table, "update t set v = 1 where id = 5")
    assert delete_files(table)
    table.target = replace(table.target, merge_on_read=False)
    counts = follow(table, "update t set v = 2 where id in (6, 7); delete from t where id = 8")
    assert (counts["total-delete-files"], counts["total-data-files"]) == (0, 2)
    follow(table, "update t set v = 3 where id in (5, 6)")
    assert delete_files(table) == set()


def test_keys_that_are_there_twice_are_replaced_by_one_row(table: IcebergReplication) -> None:
    table.repeat_rows("public.t")
    table.follow("update t set v = 1 where id = 5")
    assert table.arrow("public.t")["id"].to_pylist().count(5) == 1


@pytest.mark.slow
def test_a_copy_leaves_no_deletes(table: IcebergReplication) -> None:
    follow(table, "update t set v = 1 where id = 5")
    table.sql("alter table t add w float default random()")
    counts = follow(table, "update t set w = 1 where id = 6")
    assert counts["total-delete-files"] == 0


def test_older_snapshots_keep_the_values_of_a_column_that_was_altered(
    table: IcebergReplication,
) -> None:
    before = table.table("public.t").metadata.current_snapshot_id
    follow(table, "alter table t alter v type text; update t set v = 'x' where id = 5")
    found = table.table("public.t")
    assert set(found.scan(snapshot_id=before).to_arrow()["v"].to_pylist()) == {0}
    place = found.metadata_location.removeprefix("file://")
    rows = by_duckdb(f"select v from iceberg_scan('{place}', snapshot_from_id = {before})")
    assert set(rows["v"].to_pylist()) == {0}


def test_files_without_ids_of_columns_stay_readable_in_tables_of_earlier_versions(
    iceberg: IcebergReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.sql("create table t (id int primary key, v int[]); insert into t values (1, '{1}')")
    iceberg.capture(TableSpec("public.t", arrays="list"))
    with monkeypatch.context() as patch:
        patch.setattr(
            replicas._Output,
            "arrow",
            property(lambda self: None, lambda self, _: None),
            raising=False,
        )
        iceberg.catch_up()
    found = iceberg.table("public.t")
    names = found.schema().name_mapping.model_dump_json()
    with found.transaction() as change:
        change.set_properties({"schema.name-mapping.default": names})
    iceberg.follow_and_check(
        "insert into t values (2, '{2, 3}'); update t set v = null where id = 1"
    )
    before = iceberg.table("public.t").scan(snapshot_id=found.metadata.current_snapshot_id)
    assert before.to_arrow()["v"].to_pylist() == [[1]]
    iceberg.follow_and_check("alter table t add w int; insert into t values (3, '{}', 4)")


def test_files_do_not_get_into_a_table_whose_columns_have_other_ids(
    table: IcebergReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change() -> None:
        found = table.table("public.t")
        found.update_schema(allow_incompatible_changes=True).delete_column("v").commit()
        found.update_schema().add_column("v", IntegerType()).commit()

    at_call(monkeypatch, replicas, "find_positions", change)
    with pytest.raises(StorageFailed, match=r"columns of .*public\.t were changed"):
        table.follow("update t set v = 1")
    table.follow_and_check()


def test_metadata_files_stay_if_the_table_says_so(table: IcebergReplication) -> None:
    with table.table("public.t").transaction() as change:
        deletes = {"write.metadata.delete-after-commit.enabled": "false"}
        change.set_properties({**deletes, "write.metadata.previous-versions-max": "1"})
    before = set(table.folder.rglob("*.metadata.json"))
    follow(table, "update t set v = 1 where id = 5")
    assert before < set(table.folder.rglob("*.metadata.json"))


def test_deletes_of_another_engine_about_several_files_count(table: IcebergReplication) -> None:
    follow(table, "insert into t values (2001, 1)")
    # Without bounds, it may be about any file, and is read for each of them.
    other = with_values(positions(table, 3), lower_bounds=None, upper_bounds=None)
    publish(table, other)
    assert len(table.arrow("public.t")) == ROWS
    table.follow_and_check("delete from t where id = 4; update t set v = 1 where id in (5, 2001)")
    assert table.verify().is_equal


def test_deletes_of_another_engine_stop_the_table_until_it_is_repaired(
    table: IcebergReplication,
) -> None:
    publish(table, positions(table, 3), as_ours=False)
    (apart,) = table.follow("update t set v = 1 where id = 5")
    assert isinstance(apart, Apart)
    assert len(table.arrow("public.t")) == ROWS - 1
    table.repair()
    table.follow_and_check()


def test_deletes_by_values_are_refused(table: IcebergReplication) -> None:
    content = {"content": DataFileContent.EQUALITY_DELETES, "equality_ids": [1]}
    publish(table, with_values(positions(table, 3), **content))
    with pytest.raises(InvalidArgument, match="equality deletes"):
        table.sink("public.t").read(table.spark, table.url)  # type: ignore[attr-defined]


def test_a_list_of_deletes_that_is_gone_is_told_and_repaired(table: IcebergReplication) -> None:
    follow(table, "update t set v = 1 where id = 5")
    (file,) = delete_files(table)
    Path(file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(StorageFailed, match=r"public\.t.*cannot be read"):
        table.follow("update t set v = 1 where id = 6")
    table.repair()
    table.follow_and_check()


def test_a_table_of_a_newer_version_is_refused(table: IcebergReplication) -> None:
    # Another engine did that: pyiceberg cannot.
    metadata = Path(table.table("public.t").metadata_location.removeprefix("file://"))
    newer = {**json.loads(metadata.read_text()), "format-version": 3, "next-row-id": 0}
    metadata.write_text(json.dumps(newer))
    with pytest.raises(InvalidArgument, match="format version 3"):
        table.follow("update t set v = 1 where id = 6")


def test_files_with_many_deleted_rows_are_written_anew(table: IcebergReplication) -> None:
    follow(table, f"delete from t where id <= {ROWS / 10}")
    sink = table.sink("public.t")
    assert sink.maintain(table.spark, table.url).replaced == 0
    follow(table, f"delete from t where id <= {ROWS / 4}")
    done = sink.maintain(table.spark, table.url)
    assert (done.replaced, done.by) == (1, 1)
    table.check()
    assert delete_files(table) == set()
    follow(table, "update t set v = 1 where id = 500")


@pytest.mark.parametrize(
    "deleted",
    [*(pytest.param(x, marks=pytest.mark.slow) for x in ("id % 100 = 7", "true")), "id <= 500"],
)
def test_rows_that_are_deleted_while_a_file_is_written_anew_stay_deleted(
    table: IcebergReplication, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    follow(table, "insert into t select n, 1 from generate_series(2001, 2400) n")
    follow(table, "delete from t where id % 4 = 0")
    sink = table.sink("public.t")
    change = f"update t set v = 2 where id % 10 = 3; delete from t where {deleted}"
    plans = at_call(monkeypatch, maintenance, "planned", lambda: follow(table, change), number=2)
    sink.maintain(table.spark, table.url)
    table.check()
    assert len(plans) > 2
    follow(table, "update t set v = 3; insert into t values (1, 1) on conflict do nothing")


@pytest.mark.slow
def test_position_deletes_in_an_object_store(iceberg: IcebergReplication) -> None:
    iceberg.sql("create table t (id text primary key, v int)")
    iceberg.sql("insert into t select n, 0 from generate_series(1, 100) n")
    iceberg.capture("public.t")
    with s3_server() as s3:
        iceberg.target = IcebergReplicas(s3.url("replicas"), storage_options=s3.options)
        for script in ("select", "update t set v = 1 where id < '5'", "delete from t where v = 1"):
            iceberg.follow(script)
            assert iceberg.verify().is_equal
        catalog = iceberg_catalog(iceberg.url, **s3.iceberg_properties)
        assert delete_files_of(catalog.load_table("public.t"))
        assert iceberg.sink("public.t").maintain(iceberg.spark, iceberg.url).by == 1
        assert iceberg.verify().is_equal
        rows = catalog.load_table("public.t").scan().to_arrow().to_pylist()
        assert {row["id"] for row in rows} == {row["id"] for row in iceberg.source("t")}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param(replicas, "find_positions", marks=pytest.mark.slow),
        (commit, "write_deletes"),
        (replicas, "commit_snapshot"),
    ],
)
def test_an_attempt_that_fails_at_a_step_leaves_the_replica_as_it_is(
    table: IcebergReplication, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    step: Callable[..., Any] = getattr(module, name)

    def failing(*arguments: Any, **options: Any) -> Any:
        step(*arguments, **options)
        raise OSError("the disk is full")

    table.sql("update t set v = 1 where id = 5; delete from t where id = 6")
    table.tick()
    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing)
        with pytest.raises(StorageFailed):
            table.run(ack=False)
    table.follow_and_check()

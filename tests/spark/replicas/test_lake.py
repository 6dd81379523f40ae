"""Replicas in the lake: one commit a batch, which replaces only files with changed rows."""

from datetime import datetime, timedelta
from threading import Event, Thread
from typing import Any

import pytest
from deltalake import DeltaTable

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas.outcome import Replicated
from pgque_dagster.spark.replicas import delta, replicate
from pgque_dagster.spark.replicas import iceberg as replicas
from pgque_dagster.spark.replicas.lake import LakeReplica
from pgque_dagster.spark.replicas.location import DeltaReplicas, IcebergReplicas
from tests.support.queues.sql import PATIENCE_SECONDS
from tests.support.replicas.faults import Faults
from tests.support.replicas.replication import (
    DeltaReplication,
    IcebergReplication,
    LakeReplication,
    adopt,
)
from tests.support.runner.calls import at_call

pytestmark = pytest.mark.each_format

# Both formats share the code that these tests are about.
IN_DELTA = pytest.mark.parametrize(
    "lake", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)], indirect=True
)
IN_ICEBERG = pytest.mark.parametrize(
    "lake", [pytest.param("delta", marks=pytest.mark.slow), "iceberg"], indirect=True
)

TYPES = (
    "create table t (id smallint primary key, b bigint, r real, f float8, n numeric(12,3),"
    " s text, d date, ts timestamp, tz timestamptz, by bytea, bo bool, v int)"
)
ROW = (
    "1e10::bigint, 0.5, 0.1::float8 + 0.2, 123456789.125, 'täb\t\\n', '1500-02-28',"
    " '1500-01-01 01:02:03.456789', '2026-11-26 12:00:00.000001+01', '\\x00ff', true, n"
)


@IN_ICEBERG
def test_values_of_each_type_survive_the_changes_of_others(lake: LakeReplication) -> None:
    lake.sql(f"{TYPES}; insert into t select n, {ROW} from generate_series(1, 3) n")
    lake.begin("insert into t (id) values (-4)")
    lake.check()
    lake.follow_and_check(
        f"update t set v = 7 where id = 2; insert into t select n, {ROW} from (values (9)) x(n)"
    )
    assert lake.verify().is_equal
    assert len(lake.copied) == 1


@IN_DELTA
def test_only_files_with_changed_rows_are_replaced(lake: LakeReplication) -> None:
    folder = str(lake.folder)
    lake.target = (
        DeltaReplicas(folder, deletion_vectors=False)
        if isinstance(lake, DeltaReplication)
        else IcebergReplicas(folder, merge_on_read=False)
    )
    lake.sql("create table t (id bigint, name text, v int, primary key (id, name))")
    lake.capture("public.t")
    for first in (1, 101, 201):
        lake.catch_up()
        lake.sql(f"insert into t select n, 'n', n from generate_series({first}, {first} + 99) n")
    lake.catch_up()
    before = lake.files("public.t")
    assert len(before) == 3
    # Between the keys of two files, and within the bounds of one, but in none.
    lake.follow("update t set v = 0 where id = 150; insert into t values (50, 'm', 1)")
    assert len(before & lake.files("public.t")) == 2
    lake.check()
    lake.follow("delete from t where id > 200")
    assert len(lake.files("public.t")) == 2
    lake.check()


def test_a_batch_is_one_commit_which_names_it(lake: LakeReplication) -> None:
    lake.begin("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    before = len(lake.commits("public.t"))
    lake.sql("update t set v = 3 where id = 1; delete from t where id = 2")
    lake.follow("update t set id = 5; insert into t values (6, 6)")
    newest, *_ = found = lake.commits("public.t")
    assert len(found) == before + 1
    assert newest["app_id"].endswith("/changes/lake")
    assert newest["batch_id"] > 0
    assert newest["tick_id"] > 0


@IN_ICEBERG
def test_another_incarnation_stops_until_somebody_decides(lake: LakeReplication) -> None:
    lake.begin("create table t (id int primary key); insert into t values (1)")
    with pytest.raises(InvalidArgument, match="incarnation") as refused:
        lake.follow("select pgque.renew_incarnation(); insert into t values (2)")
    assert lake.replica("public.t") == [{"id": 1}]
    adopt(lake, str(refused.value))
    lake.follow_and_check()


@IN_ICEBERG
def test_a_replica_with_a_column_of_another_type_is_maintained(lake: LakeReplication) -> None:
    lake.begin("create table t (id int primary key, v text); insert into t values (1, '1')")
    lake.follow("alter table t alter v type int using v::int; insert into t values (2, 2)")
    lake.follow("insert into t values (3, 3)")
    assert lake.sink("public.t").maintain(lake.spark, lake.url).by == 1
    lake.follow_and_check("update t set v = 4 where id = 1")
    assert len(lake.copied) == 2


def test_a_compaction_while_files_are_written_loses_nothing(
    iceberg: IcebergReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    iceberg.sql("create table t (id int primary key, v int)")
    iceberg.capture("public.t")
    for number in range(3):
        iceberg.follow(f"insert into t values ({number}, 1)")

    def compact() -> None:
        assert iceberg.sink("public.t").maintain(iceberg.spark, iceberg.url).by == 1

    found = at_call(monkeypatch, replicas, "find_positions", compact, after=True)
    iceberg.follow("update t set v = 2 where id = 1; delete from t where id = 2")
    assert [len(each) for each in found] == [2, 1]
    iceberg.check()
    assert len(iceberg.copied) == 1
    assert len(iceberg.files("public.t")) == 2
    assert sum(1 for _ in iceberg.folder.rglob("data/4-*/*")) == 2, "the first attempt's are gone"


@IN_DELTA
def test_a_replica_whose_rows_somebody_changed_stands_apart_until_it_is_repaired(
    lake: LakeReplication,
) -> None:
    lake.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    lake.repeat_rows("public.t", as_ours=False)
    for number in (2, 3):
        lake.sql(f"insert into t values ({number}, 1)")
        lake.end_pauses()
        reason = lake.why_apart()
        assert "another program has written to the replica of public.t" in reason
        assert "Run the repair job" in reason
    assert len(lake.copied) == 3, "one copy, and two messages"
    assert len(lake.arrow("public.t")) == 2, "what somebody wrote is there still"

    lake.repair()
    lake.follow_and_check()


@pytest.mark.parametrize(
    "script", ["alter table t add c int", pytest.param("truncate t", marks=pytest.mark.slow)]
)
def test_what_somebody_wrote_is_not_replaced_by_a_copy_that_nobody_asked_for(
    delta: DeltaReplication, script: str
) -> None:
    delta.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    delta.repeat_rows("public.t", as_ours=False)
    delta.sql(script)
    found = delta.why_apart("insert into t values (2, 1)")
    assert "another program has written to the replica of public.t" in found
    assert len(delta.arrow("public.t")) == 2, "what somebody wrote is there still"
    delta.repair()
    delta.follow_and_check()


@pytest.mark.parametrize("is_acked", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_replica_is_followed_after_maintenance(delta: DeltaReplication, is_acked: bool) -> None:
    delta.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    delta.sql("insert into t values (2, 1)")
    delta.tick()
    delta.run(ack=is_acked)
    for days in (30, 31, 32):
        log = {"delta.logRetentionDuration": f"interval {days} days"}
        delta.table("public.t").alter.set_table_properties(log)
    delta.follow_and_check("insert into t values (3, 1)")
    assert len(delta.copied) == 1


def test_another_engines_compaction_is_followed_also_when_what_it_compacted_has_expired(
    iceberg: IcebergReplication,
) -> None:
    iceberg.sql("create table t (id int primary key, v int)")
    iceberg.capture("public.t")
    for number in (1, 2):
        iceberg.follow(f"insert into t values ({number}, 1)")
    later = datetime.now() + timedelta(days=1)
    for number in (3, 4):
        iceberg.compact("public.t")
        if number == 4:
            iceberg.compact("public.t")
            assert iceberg.sink("public.t").maintain(iceberg.spark, iceberg.url).by == 1
            iceberg.compact("public.t")
        iceberg.table("public.t").maintenance.expire_snapshots().older_than(later).commit()
        assert len(iceberg.table("public.t").snapshots()) == 1
        iceberg.follow_and_check(f"insert into t values ({number}, 1)")
    assert len(iceberg.copied) == 1


def test_a_new_replica_without_rows_is_nobody_elses(delta: DeltaReplication) -> None:
    delta.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    table = delta.table("public.t")
    configuration, schema = table.metadata().configuration, table.schema()
    delta.rename("t", "moved")
    DeltaTable.create(
        str(delta.folder / "public" / "t"),
        schema,
        configuration=configuration,
        raise_if_key_not_exists=False,
    )
    (done,) = delta.follow("insert into t values (2, 2)")
    assert isinstance(done, Replicated) and done.reason == "the target has no copy of it"
    delta.check()


def test_a_replica_whose_columns_somebody_changed_is_copied_again(
    iceberg: IcebergReplication,
) -> None:
    iceberg.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    with iceberg.table("public.t").update_schema() as update:
        update.delete_column("v")
    assert "another program changed" in (iceberg.verify().why_not or "")
    iceberg.follow_and_check("insert into t values (2, 2)")
    assert len(iceberg.copied) == 2


@IN_DELTA
def test_a_copy_that_a_stale_attempt_publishes_late_is_not_built_upon(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.begin("create table t (id int primary key, v int); insert into t values (1, 1), (2, 2)")
    output: Any = delta._Output if isinstance(lake, DeltaReplication) else replicas._Output
    commit, net_changes = output.commit, replicate.net_changes
    reached, go_on = Event(), Event()

    def commit_late(self: Any, state: Any) -> bool:
        if not reached.is_set():
            reached.set()
            assert go_on.wait(PATIENCE_SECONDS)
        return bool(commit(self, state))

    def apply_stale() -> None:
        with Client(lake.url) as client:
            batch = lake.claim(client)
            lake.replicate(batch, lake.tables)

    def meanwhile(*arguments: Any) -> Any:
        go_on.set()
        stale.join()
        return net_changes(*arguments)

    monkeypatch.setattr(output, "commit", commit_late)
    # Only the stale attempt sees the column, and copies the table.
    lake.sql("alter table t add column c int default 7; update t set v = 3 where id = 1")
    lake.tick()
    stale = Thread(target=apply_stale)
    with monkeypatch.context() as patch:
        patch.setattr(LakeReplica, "alter_columns", lambda *_: False)
        stale.start()
        assert reached.wait(PATIENCE_SECONDS)
    lake.sql("alter table t drop column c")
    lake.end_leases()
    monkeypatch.setattr(replicate, "net_changes", meanwhile)
    with pytest.raises(InvalidArgument, match="was written to in between"):
        lake.run()
    lake.follow_and_check()


@IN_ICEBERG
def test_changes_are_not_merged_into_a_table_that_is_new(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    lake.sql("insert into t values (2, 2)")
    lake.tick()
    Faults(lake, monkeypatch).set("before begin", 0, lambda: lake.rename("t", "moved"))
    with pytest.raises(InvalidArgument, match="or is new"):
        lake.run()
    lake.follow_and_check()


def test_columns_that_the_lake_cannot_have_are_refused(delta: DeltaReplication) -> None:
    """Before a format is asked. test_names.py has all names."""
    with pytest.raises(InvalidArgument, match="name that the lake cannot have"):
        delta.begin('create table t (id int primary key, v int, "V" int)')


@IN_DELTA
def test_a_column_that_differs_from_a_kept_one_in_case_is_refused(lake: LakeReplication) -> None:
    lake.keep("soft")
    lake.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    lake.sql('alter table t drop v; alter table t add "V" int')
    with pytest.raises(InvalidArgument, match="in case alone"):
        lake.follow("insert into t values (2, 2)")

"""A table that is copied into its replica again writes just the rows that differ."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from deltalake import write_deltalake

from pgque_dagster.client import InvalidArgument, PgqueError
from pgque_dagster.client.replicas.deletes import DELETED_TICK, FROM_TICK, TO_TICK
from pgque_dagster.client.replicas.outcome import Apart, Replicated
from pgque_dagster.spark.replicas import lake as lake_replicas
from pgque_dagster.spark.sinks.files.storage import StorageFailed
from tests.support.replicas.faults import Faults
from tests.support.replicas.replication import DeltaReplication, LakeReplication, Replication

TABLE = "create table t (id int primary key, v text, n smallint, data bytea, f float8)"
# What is kept is decided in one place for both formats of the lake.
ONE_FORMAT = pytest.mark.parametrize("replication", ["iceberg", "postgres"], indirect=True)
# Changes that no trigger reports.
HIDDEN = "set session_replication_role = replica;"


def prepare(replication: Replication) -> None:
    replication.begin(
        f"{TABLE}; insert into t select n, 'v' || n, n, '\\x00ff', n / 7.0"
        " from generate_series(1, 200) n"
    )


def repair(replication: Replication) -> Replicated:
    replication.repair()
    replication.tick()
    (done,) = replication.run()
    return done


@pytest.mark.in_the_lake
def test_just_the_rows_that_differ_are_written(replication: Replication) -> None:
    prepare(replication)
    replication.sql(
        f"{HIDDEN} update t set v = null where id = 3; update t set data = '\\x' where id = 4;"
        "update t set f = '-0' where id = 5; delete from t where id = 6; insert into t values (900)"
    )
    replication.sql("update t set v = 'seen' where id = 7")

    done = repair(replication)

    assert (done.rows, done.written) == (200, 6)
    replication.check()
    replication.follow_and_check(
        "update t set v = 'later' where id in (3, 8); delete from t where id = 900"
    )
    assert len(replication.copied) == 2


def test_a_replica_that_is_equal_stays_as_it_is(replication: Replication) -> None:
    prepare(replication)
    files = replication.files("public.t") if isinstance(replication, LakeReplication) else None
    assert repair(replication).written == 0
    if isinstance(replication, LakeReplication):
        assert replication.files("public.t") == files
    replication.follow_and_check("update t set v = 'later' where id = 3")
    assert len(replication.copied) == 2, "the copy that was acked is the one that the replica has"


@pytest.mark.parametrize(
    ("repairs", "point"),
    [
        (False, "before begin"),
        pytest.param(False, "before commit", marks=pytest.mark.slow),
        pytest.param(True, "before begin", marks=pytest.mark.slow),
        (True, "before commit"),
    ],
)
def test_a_commit_of_somebody_else_beside_an_attempt_is_found(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch, point: str, repairs: bool
) -> None:
    prepare(lake)
    lake.sql("update t set v = 'new' where id = 3")
    if repairs:
        lake.repair()
    lake.tick()
    faults = Faults(lake, monkeypatch)
    faults.set(point, 0, lambda: lake.repeat_rows("public.t", as_ours=False))
    with pytest.raises(InvalidArgument, match="was written to in between"):
        lake.run()
    if not repairs:
        (apart,) = lake.catch_up()
        assert isinstance(apart, Apart), "nobody asked for a copy, which replaces that commit"
        lake.repair()
    lake.follow_and_check()


def test_what_somebody_writes_beside_a_whole_copy_is_not_replaced(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(lake)
    lake.sql("alter table t alter n type bigint using n + 1")
    lake.tick()
    faults = Faults(lake, monkeypatch)
    faults.set("before commit", 0, lambda: lake.repeat_rows("public.t", as_ours=False))
    (apart,) = lake.run()
    assert isinstance(apart, Apart)
    assert "another program has written to the replica of public.t" in apart.reason
    assert len(lake.arrow("public.t")) == 400


def test_a_replica_whose_file_is_gone_is_written_as_a_whole(lake: LakeReplication) -> None:
    prepare(lake)
    (file,) = lake.files("public.t")
    Path(file.removeprefix("file://")).unlink()
    assert repair(lake).written is None
    lake.check()
    assert "cannot be compared" in lake.copied[-1]


def test_rows_that_only_a_file_kept_that_is_gone_are_said_to_be_lost(lake: LakeReplication) -> None:
    lake.keep("soft")
    prepare(lake)
    (file,) = lake.files("public.t")
    Path(file.removeprefix("file://")).unlink()
    with pytest.raises(StorageFailed, match="move it away"):
        repair(lake)


def test_a_delta_table_that_somebody_partitioned_is_refused(delta: DeltaReplication) -> None:
    prepare(delta)
    table = delta.table("public.t")
    write_deltalake(
        table, delta.arrow("public.t"), mode="overwrite", schema_mode="overwrite", partition_by="n"
    )
    delta.follow("update t set v = 'new' where id = 3")
    delta.repair()
    reason = delta.why_apart("update t set v = 'newer' where id = 3")
    assert "partitioned by n" in reason and "Move it away" in reason


def test_other_columns_and_many_differences_have_all_rows_written(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(lake)
    lake.sql("alter table t add c int")
    assert repair(lake).written is None
    lake.check()
    monkeypatch.setattr(lake_replicas, "_REPAIRED", 10)
    lake.sql(f"{HIDDEN} update t set v = 'x' where id <= 10")
    assert repair(lake).written == 10
    lake.sql(f"{HIDDEN} update t set v = 'y' where id <= 11")
    assert repair(lake).written is None
    lake.check()


@ONE_FORMAT
def test_a_row_that_is_gone_is_kept_with_a_mark(replication: Replication) -> None:
    replication.keep("soft")
    prepare(replication)
    replication.sql(f"{HIDDEN} delete from t where id = 6; update t set v = 'x' where id = 7")
    before = replication.last_tick()
    assert repair(replication).written == 2
    rows = {row["id"]: row for row in replication.replica("public.t")}
    assert len(rows) == 200
    assert rows[6][DELETED_TICK] > before
    assert (rows[7]["v"], rows[7][DELETED_TICK]) == ("x", None)
    assert replication.verify().is_equal


@ONE_FORMAT
def test_a_repaired_row_is_a_version(replication: Replication) -> None:
    replication.keep("history")
    prepare(replication)
    replication.sql(f"{HIDDEN} delete from t where id = 6; update t set v = 'x' where id = 7")
    before = replication.last_tick()
    assert repair(replication).written == 2
    rows = [row for row in replication.replica("public.t") if row["id"] in (6, 7)]
    ended = {row["id"]: row[TO_TICK] for row in rows if row[TO_TICK] is not None}
    (begun,) = [row for row in rows if row[TO_TICK] is None]
    assert ended.keys() == {6, 7}
    assert min(ended.values()) > before
    assert (begun["id"], begun["v"], begun[FROM_TICK]) == (7, "x", ended[7])
    assert len(replication.replica("public.t")) == 201
    assert replication.verify().is_equal


def test_a_repair_is_refused_where_an_earlier_attempt_stores_changes_meanwhile(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier one stores 1, which was 0 before, and is 0 in the snapshot of the repair."""
    lake.begin("create table t (id int primary key, v int); insert into t values (1, 0), (2, 0)")
    lake.sql("update t set v = 1 where id = 1")
    lake.tick()
    may_store, is_renewed = Event(), Event()
    faults = Faults(lake, monkeypatch)

    def wait() -> None:
        is_renewed.set()
        assert may_store.wait(60)

    with ThreadPoolExecutor(1) as threads:
        faults.set("before commit", 0, wait)
        earlier = threads.submit(lake.run, ack=False)
        assert is_renewed.wait(60)
        lake.end_leases()
        lake.sql("update t set v = 0 where id = 1")

        def store() -> None:
            may_store.set()
            assert isinstance(earlier.exception(60), PgqueError), "it has lost the lease"
            assert lake.live("public.t")[0]["v"] == 1

        faults.set("after begin", 0, store)
        with pytest.raises(InvalidArgument, match="in between"):
            repair(lake)
    lake.follow_and_check()

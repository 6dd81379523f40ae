"""Replicas of tables without a key: each insert once, and any other change stops them."""

import pytest

from pgque_dagster.client.errors import InvalidArgument, PgqueError
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.faults import Faults
from tests.support.replicas.replication import PostgresReplication, Replication

LOG = TableSpec("public.t", mode="append")
TABLE = "create table t (at timestamptz, v int, data bytea, f float8)"
ROWS = "('2026-01-01', 1, '\\x00', 'NaN'), (null, null, null, null), (null, null, null, null)"


def begin(replication: Replication) -> None:
    replication.begin(f"{TABLE}; insert into t values {ROWS}", LOG)


def test_equal_rows_are_as_many_as_in_the_source(replication: Replication) -> None:
    begin(replication)
    assert replication.verify(LOG).is_equal
    replication.sql(f"insert into t values {ROWS}; insert into t (v) values (2)")
    found = replication.verify(LOG)
    assert (found.is_equal, found.rows) == (True, 7)
    replication.catch_up()
    assert replication.verify(LOG).is_equal
    assert len(replication.replica("public.t")) == 7
    assert len(replication.copied) == 1
    replication.sql(
        "set session_replication_role = replica;"
        "delete from t where ctid = (select min(ctid) from t where v is null);"
        "insert into t (v) values (3)"
    )
    found = replication.verify(LOG)
    assert (found.rows, found.differences) == (7, 2)
    replication.repair()
    replication.catch_up()
    assert replication.verify(LOG).is_equal


def test_a_change_that_is_no_insert_stops_the_replica_and_not_the_writer(
    replication: Replication,
) -> None:
    begin(replication)
    for change, kind in (
        ("update t set v = 9 where v = 1", "update"),
        ("delete from t where v = 9", "delete"),
    ):
        replication.sql(f"{change}; insert into t (v) values (7)")
        assert not replication.verify(LOG).is_equal
        stopped = rf"public\.t is replicated by append.* of type .*{kind}"
        with pytest.raises(InvalidArgument, match=stopped):
            replication.catch_up()
        replication.repair()
        replication.catch_up()
        assert replication.verify(LOG).is_equal
    replication.follow("truncate t; insert into t (v) values (8)")
    assert [row["v"] for row in replication.replica("public.t")] == [8]


def test_an_attempt_that_is_overtaken_repeats_no_row(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(replication)
    replication.sql(f"insert into t values {ROWS}")
    replication.tick()

    def others_go_on() -> None:
        replication.end_leases()
        replication.run()

    point = "record" if isinstance(replication, PostgresReplication) else "commit"
    Faults(replication, monkeypatch).set(f"before {point}", 0, others_go_on)
    with pytest.raises(PgqueError):
        replication.run()
    assert len(replication.replica("public.t")) == 6
    replication.follow("insert into t (v) values (3)")
    assert replication.verify(LOG).is_equal
    assert len(replication.copied) == 1


@pytest.mark.in_the_lake
def test_a_batch_that_is_applied_again_adds_no_row(replication: Replication) -> None:
    begin(replication)
    replication.sql(f"insert into t values {ROWS}")
    replication.tick()
    for ack in (False, False, True):
        replication.run(ack=ack)
        assert len(replication.replica("public.t")) == 6
    assert len(replication.copied) == 1


def test_the_mode_follows_the_key_and_the_target(replication: Replication) -> None:
    replication.sql("create table t (v int); create table u (id int primary key)")
    with pytest.raises(InvalidArgument, match="mode: append, if its rows are only inserted"):
        replication.capture("public.t")
    with pytest.raises(InvalidArgument, match="Leave out the mode"):
        replication.capture(TableSpec("public.u", mode="append"))
    begin_spec = replication.tables
    replication.tables = [each for each in begin_spec if each == LOG]
    replication.capture(LOG)
    replication.catch_up()
    replication.keep("soft")
    with pytest.raises(InvalidArgument, match="deletes: hard"):
        replication.follow("insert into t values (1)")
    replication.keep("hard")
    replication.sql("alter table t add primary key (v)")
    replication.tables = ["public.t"]
    replication.catch_up()
    replication.follow_and_check("update t set v = 2")
    assert replication.verify("public.t").is_equal

"""Replicas of tables without a key: each insert once, and any other change stops them."""

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument, PgqueError
from pgque_dagster.client.replicas.capture import copy_again
from pgque_dagster.client.replicas.spec import TableSpec
from tests.client.consumer.support import expire_leases
from tests.support.replicas.faults import Faults, Killed
from tests.support.replicas.replication import CONSUMER, QUEUE, PostgresReplication, Replication

LOG = TableSpec("public.t", mode="append")
TABLE = "create table t (at timestamptz, v int, data bytea, f float8)"
ROWS = "('2026-01-01', 1, '\\x00', 'NaN'), (null, null, null, null), (null, null, null, null)"


def begin(replication: Replication) -> None:
    replication.sql(f"{TABLE}; insert into t values {ROWS}")
    replication.capture(LOG)
    replication.catch_up()


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
    with Client(replication.url) as client:
        copy_again(client, QUEUE, CONSUMER, "public.t")
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
        with Client(replication.url) as client:
            copy_again(client, QUEUE, CONSUMER, "public.t")
        replication.catch_up()
        assert replication.verify(LOG).is_equal
    replication.sql("truncate t; insert into t (v) values (8)")
    replication.catch_up()
    assert [row["v"] for row in replication.replica("public.t")] == [8]


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_attempt_that_dies_or_is_overtaken_repeats_no_row(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, when: str, dies: bool
) -> None:
    begin(replication)
    replication.sql(f"insert into t values {ROWS}")
    replication.tick()

    def others_go_on() -> None:
        with replication.connect() as db:
            expire_leases(db)
        replication.run()

    def die() -> None:
        raise Killed

    point = "record" if isinstance(replication, PostgresReplication) else "commit"
    Faults(replication, monkeypatch).set(f"{when} {point}", 0, die if dies else others_go_on)
    with pytest.raises((Killed, PgqueError)):
        replication.run()
    if dies:
        others_go_on()
    assert len(replication.replica("public.t")) == 6
    replication.sql("insert into t (v) values (3)")
    replication.catch_up()
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
    replication.sql("insert into t values (1)")
    replication.tick()
    with pytest.raises(InvalidArgument, match="deletes: hard"):
        replication.run()
    replication.keep("hard")
    replication.sql("alter table t add primary key (v)")
    replication.tables = ["public.t"]
    replication.catch_up()
    replication.sql("update t set v = 2")
    replication.catch_up()
    replication.check()
    assert replication.verify("public.t").is_equal

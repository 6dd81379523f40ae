"""The number of a replica's rows is recorded with each batch, without counting them."""

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.outcome import acked, record_batch
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import QUEUE, DeltaReplication, LakeReplication, Replication


def run(replication: Replication, *, ack: bool = True) -> None:
    """Applies all batches; without an ack, the first one, as if the run had died then."""
    replication.tick()
    with Client(replication.url) as client:
        while batch := replication.claim(client):
            claim = acked(batch.claim)
            record_batch(claim, replication.replicate(batch, replication.tables))
            if not ack:
                claim.release()
                return
            claim.ack()


def recorded(replication: Replication) -> tuple[int | None, bool]:
    """How many rows the record says that there are, and whether it says that of now."""
    with Client(replication.url) as client:
        (found,) = client.replicas(QUEUE)
        return found.rows, found.counted_tick is None


def rows(replication: Replication, table: str = "public.t") -> int:
    return len(replication.live(table))


@pytest.mark.in_the_lake
def test_changes_add_and_take_away(replication: Replication) -> None:
    replication.sql(
        "create table t (id int primary key, v int);"
        "insert into t select n, n from generate_series(1, 10) n"
    )
    replication.capture("public.t")
    run(replication)
    assert recorded(replication) == (10, True)
    replication.sql(
        "insert into t select n, n from generate_series(11, 15) n; delete from t where id < 3;"
        "update t set v = 0 where id in (4, 5); update t set id = 100 where id = 6;"
        "delete from t where id = 7; insert into t values (7, 8); insert into t values (50, 1);"
        "delete from t where id = 50"
    )
    run(replication)
    assert recorded(replication) == (rows(replication), True) == (13, True)

    replication.sql("insert into t values (200, 1)")
    run(replication, ack=False)
    run(replication)
    known, is_of_now = recorded(replication)
    assert (known, is_of_now) in {(13, False), (14, True)}, "of the attempt, or of both"
    replication.sql("insert into t values (201, 1)")
    run(replication)
    assert recorded(replication) == ((known or 0) + is_of_now, is_of_now)


def test_rows_of_a_file_that_lacks_some_already_are_counted_once(delta: DeltaReplication) -> None:
    delta.sql("create table t (id int primary key, v int)")
    delta.sql("insert into t select n, n from generate_series(1, 10) n")
    delta.capture("public.t")
    run(delta)
    for number in (1, 2):
        delta.sql(f"delete from t where id = {number}; update t set v = 0 where id = {number + 5}")
        run(delta)
    assert recorded(delta) == (rows(delta), True) == (8, True)


def test_appended_rows_are_added(lake: LakeReplication) -> None:
    lake.sql("create table log (line text); insert into log values ('a')")
    lake.capture(TableSpec("public.log", mode="append"))
    run(lake)
    lake.sql("insert into log values ('b'), ('c')")
    run(lake)
    assert recorded(lake) == (3, True)


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_rows_that_are_kept_are_not_counted(replication: Replication) -> None:
    replication.keep("soft")
    replication.sql("create table t (id int primary key); insert into t values (1), (2)")
    replication.capture("public.t")
    run(replication)
    assert recorded(replication) == (2, True)
    replication.sql("delete from t where id = 1")
    run(replication)
    assert recorded(replication) == (2, False)

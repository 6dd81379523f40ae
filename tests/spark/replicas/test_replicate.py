"""Replicas equal their tables after each batch, whatever happens to table, run and writers."""

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument, PermissionDenied
from pgque_dagster.client.replicas.capture import capture_new, request_copy
from pgque_dagster.client.replicas.outcome import Apart
from pgque_dagster.spark import SparkBatch
from tests.support.replicas.replication import (
    QUEUE,
    DeltaReplication,
    LakeReplication,
    Replication,
)
from tests.support.servers.logins import as_login

# For both formats of the lake, one place decides what is copied and which changes are applied.
ONE_FORMAT = pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)


@pytest.mark.in_the_lake
def test_a_table_is_copied_and_then_follows_each_change(replication: Replication) -> None:
    replication.sql(
        "create table t (id int primary key deferrable, name text);"
        "insert into t select n, 'old ' || n from generate_series(1, 100) n"
    )
    replication.capture("public.t")
    replication.sql("insert into t values (101, 'before the copy')")
    replication.catch_up()
    replication.check()
    assert replication.copied == [
        "copying public.t: it has not been copied, a repair was requested, or events were skipped"
    ]
    replication.sql(
        "update t set name = 'new' where id < 10; delete from t where id between 20 and 30;"
        "update t set id = id + 1000 where id between 40 and 50; insert into t values (20, null);"
        "update t set id = case id when 1 then 2 else 1 end where id in (1, 2)"
    )
    replication.catch_up()
    replication.check()
    assert len(replication.copied) == 1


@pytest.mark.in_the_lake
def test_a_batch_that_is_applied_again_changes_nothing(replication: Replication) -> None:
    replication.sql("create table t (id int primary key, v int); insert into t values (1, 1)")
    replication.capture("public.t")
    replication.tick()
    replication.run(ack=False)
    replication.sql("update t set v = 2")
    replication.run()
    replication.sql("insert into t values (2, 2); delete from t where id = 1")
    replication.tick()
    for _ in range(2):
        replication.run(ack=False)
        replication.check()
    replication.run()
    replication.check()


@pytest.mark.in_the_lake
def test_a_stale_attempt_publishes_nothing(replication: Replication) -> None:
    replication.sql("create table t (id int primary key); insert into t values (1)")
    replication.capture("public.t")
    replication.tick()
    with Client(replication.url) as client:
        stale = replication.claim(client)
        assert stale is not None
        stale.claim.release()
        replication.run()
        replication.sql("insert into t values (2)")
        replication.catch_up()
        with pytest.raises(Exception, match="batch"):
            replication.replicate(stale, replication.tables)
    replication.check()


@ONE_FORMAT
@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("alter table t add column c int default 7", "column 4 c integer was added"),
        ("alter table t drop column name", "column 2 name was dropped"),
        ("alter table t rename column name to title", "column 2 title was name"),
        ("alter table t alter column v type bigint using v + 1", "v is bigint and was integer"),
        ("alter table t alter column v type int using v + 1", "files"),
        ("alter table t drop constraint t_pkey; alter table t add primary key (id, v)", "key"),
        ("alter table t disable trigger all; update t set v = 9", "is disabled"),
        (
            "alter table t disable trigger all; update t set v = 9;"
            "alter table t enable trigger all",
            "its triggers were",
        ),
        (
            "select pgque.uncapture('t', 'changes'); update t set v = 9;"
            "select pgque.capture('t', 'changes')",
            "its triggers were",
        ),
    ],
)
def test_what_triggers_do_not_report_has_the_table_copied_again(
    replication: Replication, script: str, why: str
) -> None:
    replication.sql(
        "create table t (id int primary key, name text, v int);"
        "insert into t select n, 'x', n from generate_series(1, 5) n"
    )
    replication.capture("public.t")
    replication.catch_up()
    replication.sql(script)
    replication.sql("alter table t enable trigger all") if "column" in why else None
    replication.sql("insert into t (id, v) values (6, 6)")
    replication.sql("select pgque.send('changes', 'other', 'wakes the consumer')")
    replication.catch_up()
    assert why in replication.copied[-1]
    replication.check()
    assert len(replication.copied) == 2
    replication.sql("update t set v = v + 1 where id > 3")
    replication.catch_up()
    replication.check()


@ONE_FORMAT
def test_a_consumer_that_passes_over_events_copies_the_table_again(
    replication: Replication,
) -> None:
    replication.sql("create table t (id int primary key, v int); insert into t values (1, 1)")
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("update t set v = 2")
    replication.tick()
    replication.sql("select pgque.seek('changes', 'lake', 'latest', i_skip => true)")
    replication.sql("select pgque.send('changes', 'other', 'wakes the consumer')")
    replication.catch_up()
    replication.check()
    assert len(replication.copied) == 2


@ONE_FORMAT
def test_changes_that_are_set_aside_and_delivered_again_are_not_applied_late(
    replication: Replication,
) -> None:
    replication.sql("create table t (id int primary key, v int); insert into t values (1, 1)")
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("update t set v = 2")
    replication.tick()
    with Client(replication.url) as client:
        batch = replication.claim(client)
        assert batch is not None
        ids = [row.ev_id for row in batch.events(["ev_id"]).collect()]
        batch.dead_letter(ids, reason="a person does not want it")
        batch.claim.ack()
    replication.sql("update t set v = 3")
    replication.catch_up()
    replication.check()
    replication.sql("select pgque.dlq_replay_all('changes')")
    replication.sql("update t set v = 4")
    replication.sql("select pgque.maint()")
    replication.catch_up()
    replication.catch_up()
    replication.check()


@pytest.mark.in_the_lake
@ONE_FORMAT
def test_tables_advance_together_and_partitions_are_one_table(replication: Replication) -> None:
    replication.sql(
        'create schema s; create table s."Big One" (id int, day date, primary key (id, day))'
        " partition by range (day);"
        'create table s.p1 partition of s."Big One" '
        "for values from ('2026-01-01') to ('2026-02-01');"
        "create table t (id int primary key);"
        "insert into s.\"Big One\" values (1, '2026-01-05')"
    )
    replication.capture('s."Big One"', "public.t")
    replication.catch_up()
    replication.sql(
        "insert into s.p1 values (2, '2026-01-06'); insert into t values (2);"
        'create table s.p2 partition of s."Big One" '
        "for values from ('2026-02-01') to ('2026-03-01');"
        "insert into s.p2 values (3, '2026-02-05')"
    )
    replication.catch_up()
    replication.sql("insert into s.p2 values (4, '2026-02-06')")
    replication.catch_up()
    replication.check("public.t")
    rows = replication.source('s."Big One"')
    assert [row["id"] for row in rows] == [1, 2, 3, 4]
    assert replication.replica("s.Big One") == rows


@ONE_FORMAT
def test_a_copy_can_be_asked_for(replication: Replication) -> None:
    replication.sql("create table t (id int primary key)")
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("set session_replication_role = replica; insert into t values (1)")
    with Client(replication.url) as client:
        request_copy(client, QUEUE, "public.t")
    replication.catch_up()
    assert "asked for" in replication.copied[-1]
    replication.check()


@ONE_FORMAT
def test_changes_of_a_table_that_was_never_replicated_are_copied_when_it_is(
    replication: Replication,
) -> None:
    replication.sql("create table t (id int primary key); create table u (id int primary key)")
    replication.capture("public.t")
    replication.sql("select pgque.capture('u', 'changes'); insert into u values (1)")
    replication.catch_up()
    replication.check()
    assert "changes of public.u are skipped" in " ".join(replication.copied)
    replication.tables.append("public.u")
    replication.sql("insert into t values (1)")
    replication.catch_up()
    replication.check()


@pytest.mark.parametrize(
    ("script", "name", "words"),
    [
        ("create table t (id int)", "t", "no key"),
        ("create table t (id float8 primary key)", "t", "double precision"),
        ("create view t as select 1 as id", "t", "is a view"),
        (
            "create foreign data wrapper w; create server w foreign data wrapper w;"
            "create foreign table t (id int) server w",
            "t",
            "is a view or the like",
        ),
        ("create unlogged table t (id int primary key)", "t", "unlogged"),
        ("create table t (id int primary key); create table c () inherits (t)", "t", "inherit"),
        ("create table t (id int primary key, __pgque_deleted int)", "t", "reserved"),
        ("select 1", "missing", "no table missing"),
    ],
)
def test_what_cannot_be_replicated_is_refused(
    delta: DeltaReplication, script: str, name: str, words: str
) -> None:
    """When it is captured, wherever its replica would be."""
    delta.sql(script)
    with pytest.raises(InvalidArgument, match=words):
        delta.capture(name)


def test_another_table_in_the_place_is_not_overwritten(lake: LakeReplication) -> None:
    lake.sql("create table t (id int primary key); create table u (id int primary key)")
    lake.capture("public.t")
    lake.catch_up()
    lake.rename("t", "u")
    lake.capture("public.u")
    lake.tick()
    *_, apart = lake.run()
    assert isinstance(apart, Apart)
    assert (
        "is the replica of changes/lake/public.t, and not of changes/lake/public.u" in apart.reason
    )


def test_a_table_of_somebody_else_is_refused_and_left_alone(lake: LakeReplication) -> None:
    lake.sql("create table t (id int primary key); create table u (id int primary key)")
    lake.sql("insert into t values (1)")
    lake.capture("public.t")
    lake.catch_up()
    lake.write_foreign("u")
    lake.capture("public.u")
    lake.sql("insert into t values (2)")
    lake.tick()
    *_, apart = lake.run()
    assert isinstance(apart, Apart)
    assert "is no replica, and not of changes/lake/public.u" in apart.reason
    lake.check("public.t")
    assert lake.arrow("public.u").column_names == ["id"]


def test_a_role_that_may_not_read_or_capture_is_told_what_it_needs(
    delta: DeltaReplication,
) -> None:
    """When it captures the table, wherever its replica would be."""
    delta.sql("create table t (id int primary key)")
    url = delta.url
    delta.url = as_login(url, "pgque_reader", "pgque_writer")
    with pytest.raises(PermissionDenied, match=r"grant select on public\.t to login_reader_writer"):
        delta.capture("public.t")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("grant select on t to login_reader_writer")
    with pytest.raises(PermissionDenied, match="permission denied for table t"):
        delta.capture("public.t")


@pytest.mark.in_the_lake
def test_a_copy_that_was_published_and_not_acked_is_made_again(replication: Replication) -> None:
    replication.sql(
        "create table t (id int primary key, a text, b text); insert into t values (1, 'x', null)"
    )
    replication.capture("public.t")
    replication.catch_up()
    swap = "alter table t rename a to c; alter table t rename b to a; alter table t rename c to b"
    replication.sql(swap)
    replication.sql("insert into t values (2, 'y', null)")
    replication.tick()
    replication.run(ack=False)
    replication.sql(swap)
    replication.sql("insert into t values (3, 'z', null)")
    replication.catch_up()
    replication.check()
    assert replication.verify().is_equal


@pytest.mark.parametrize("script", ["add ts timestamp", "alter at type timestamp"])
def test_a_timestamp_without_a_zone_may_come_later(replication: Replication, script: str) -> None:
    replication.sql("create table t (id int primary key, at timestamptz); insert into t values (1)")
    replication.capture("public.t")
    replication.catch_up()
    replication.sql(f"alter table t {script}; insert into t values (2, '2026-01-01 12:00')")
    replication.catch_up()
    replication.check()
    replication.sql("update t set at = '2026-01-02'")
    replication.catch_up()
    replication.check()


@ONE_FORMAT
def test_a_partition_that_was_detached_is_no_part_of_the_replica(replication: Replication) -> None:
    replication.sql(
        "create table t (id int primary key) partition by range (id);"
        "create table p1 partition of t for values from (0) to (10);"
        "create table p2 partition of t for values from (10) to (20);"
        "insert into t values (1), (11)"
    )
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("alter table t detach partition p2; insert into p2 values (2), (12)")
    replication.catch_up()
    replication.check()


@ONE_FORMAT
def test_a_table_that_is_named_twice_is_refused(replication: Replication) -> None:
    replication.sql("create table t (id int primary key)")
    replication.capture("public.t")
    replication.tables = ["public.t", "public.T"]
    replication.tick()
    with pytest.raises(InvalidArgument, match="are the same"):
        replication.run()


def test_two_queues_do_not_share_a_replica(replication: Replication) -> None:
    replication.sql("create table t (id int primary key)")
    replication.capture("public.t")
    replication.catch_up()
    replication.sql(
        "select pgque.create_queue('second'); select pgque.register_consumer('second', 'lake')"
    )
    with Client(replication.url) as client:
        capture_new(client, "second", ["public.t"])
        client.force_next_tick("second")
        client.ticker()
        claim = client.claim("second", "lake", owner="a test")
        assert claim is not None
        batch = SparkBatch(replication.spark, claim, client.url)
        with pytest.raises(InvalidArgument, match=r"the replica of changes/(lake/)?public\.t"):
            replication.replicate(batch, ["public.t"])

"""Replicas equal their tables after each batch, whatever happens to table, run and writers."""

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument, PermissionDenied
from pgque_dagster.client.replicas.capture import capture_new
from pgque_dagster.client.replicas.outcome import Apart
from tests.support.replicas.replication import (
    DeltaReplication,
    LakeReplication,
    Replication,
    for_table,
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
    replication.follow_and_check("insert into t values (101, 'before the copy')")
    assert replication.copied == [
        "copying public.t: it has not been copied, a repair was requested, or events were skipped"
    ]
    replication.follow_and_check(
        "update t set name = 'new' where id < 10; delete from t where id between 20 and 30;"
        "update t set id = id + 1000 where id between 40 and 50; insert into t values (20, null);"
        "update t set id = case id when 1 then 2 else 1 end where id in (1, 2)"
    )
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
        stale.claim.release()
        replication.run()
        replication.follow("insert into t values (2)")
        with pytest.raises(Exception, match="batch"):
            replication.replicate(stale, replication.tables)
    replication.check()


# What is done to a table t, with a part of the reason for a copy.
UNREPORTED = (
    ("alter table t add column c int default 7", "column 4 c integer was added"),
    ("alter table t drop column name", "column 2 name was dropped"),
    ("alter table t rename column name to title", "column 2 title was name"),
    ("alter table t alter column v type bigint using v + 1", "v is bigint and was integer"),
    ("alter table t alter column v type int using v + 1", "files"),
    ("alter table t drop constraint t_pkey; alter table t add primary key (id, v)", "key"),
    ("alter table t disable trigger all; update t set v = 9", "is disabled"),
    (
        "alter table t disable trigger all; update t set v = 9; alter table t enable trigger all",
        "its triggers were",
    ),
    (
        "select pgque.uncapture('t', 'changes'); update t set v = 9;"
        "select pgque.capture('t', 'changes')",
        "its triggers were",
    ),
)


@ONE_FORMAT
def test_what_triggers_do_not_report_is_found(replication: Replication) -> None:
    names = [f"public.t{number}" for number in range(len(UNREPORTED))]
    table = (
        "create table t (id int primary key, name text, v int);"
        "insert into t select n, 'x', n from generate_series(1, 5) n;"
    )
    replication.begin("".join(for_table(name, table) for name in names), *names)
    for name, (script, _) in zip(names, UNREPORTED, strict=True):
        replication.sql(for_table(name, script))
        replication.sql(f"insert into {name} (id, v) values (6, 6)")
    replication.follow_and_check("select pgque.send('changes', 'other', 'wakes the consumer')")
    for name, (_, why) in zip(names, UNREPORTED, strict=True):
        (told,) = [each for each in replication.copied[len(names) :] if name in each]
        assert why in told
    for name in names:
        replication.sql(f"update {name} set v = v + 1 where id > 3")
    replication.follow_and_check()


@ONE_FORMAT
def test_changes_that_are_set_aside_and_delivered_again_are_not_applied_late(
    replication: Replication,
) -> None:
    replication.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    replication.sql("update t set v = 2")
    replication.tick()
    with Client(replication.url) as client:
        claim = replication.claim(client).claim
        ids = [each.msg_id for each in claim.events()]
        claim.dead_letter(ids, reason="a person does not want it")
        claim.ack()
    replication.follow_and_check("update t set v = 3")
    replication.sql("select pgque.dlq_replay_all('changes')")
    replication.sql("update t set v = 4")
    replication.follow("select pgque.maint()")
    replication.follow_and_check()


@pytest.mark.in_the_lake
@ONE_FORMAT
def test_tables_advance_together_and_partitions_are_one_table(replication: Replication) -> None:
    replication.begin(
        'create schema s; create table s."Big One" (id int, day date, primary key (id, day))'
        " partition by range (day);"
        'create table s.p1 partition of s."Big One" '
        "for values from ('2026-01-01') to ('2026-02-01');"
        "create table t (id int primary key);"
        "insert into s.\"Big One\" values (1, '2026-01-05')",
        's."Big One"',
        "public.t",
    )
    replication.follow(
        "insert into s.p1 values (2, '2026-01-06'); insert into t values (2);"
        'create table s.p2 partition of s."Big One" '
        "for values from ('2026-02-01') to ('2026-03-01');"
        "insert into s.p2 values (3, '2026-02-05')"
    )
    replication.follow("insert into s.p2 values (4, '2026-02-06')")
    replication.check("public.t")
    rows = replication.source('s."Big One"')
    assert [row["id"] for row in rows] == [1, 2, 3, 4]
    assert replication.replica("s.Big One") == rows


def test_what_cannot_be_replicated_is_refused(delta: DeltaReplication) -> None:
    """When it is captured, wherever its replica would be."""
    for number, (script, words) in enumerate(
        (
            ("create table t (id int)", "no key"),
            ("create table t (id float8 primary key)", "double precision"),
            ("create view t as select 1 as id", "is a view"),
            (
                "create foreign data wrapper w; create server w foreign data wrapper w;"
                "create foreign table t (id int) server w",
                "is a view or the like",
            ),
            ("create unlogged table t (id int primary key)", "unlogged"),
            ("create table t (id int primary key); create table c () inherits (t)", "inherit"),
            ("create table t (id int primary key, __pgque_deleted int)", "reserved"),
            ("select 1", "no table"),
        )
    ):
        delta.sql(for_table(f"t{number}", script))
        with pytest.raises(InvalidArgument, match=words):
            delta.capture(f"t{number}")


def test_another_table_in_the_place_is_not_overwritten(lake: LakeReplication) -> None:
    lake.begin("create table t (id int primary key); create table u (id int primary key)")
    lake.rename("t", "u")
    lake.capture("public.u")
    *_, apart = lake.catch_up()
    assert isinstance(apart, Apart)
    assert (
        "is the replica of changes/lake/public.t, and not of changes/lake/public.u" in apart.reason
    )


def test_a_table_of_somebody_else_is_refused_and_left_alone(lake: LakeReplication) -> None:
    lake.sql("create table t (id int primary key); create table u (id int primary key)")
    lake.begin("insert into t values (1)")
    lake.write_foreign("u")
    lake.capture("public.u")
    found = lake.why_apart("insert into t values (2)")
    assert "is no replica, and not of changes/lake/public.u" in found
    lake.check("public.t")
    assert lake.arrow("public.u").column_names == ["id"]


def test_a_role_that_may_not_read_or_capture_is_told_what_it_needs(delta: DeltaReplication) -> None:
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
    replication.begin(
        "create table t (id int primary key, a text, b text); insert into t values (1, 'x', null)"
    )
    swap = "alter table t rename a to c; alter table t rename b to a; alter table t rename c to b"
    replication.sql(swap)
    replication.sql("insert into t values (2, 'y', null)")
    replication.tick()
    replication.run(ack=False)
    replication.sql(swap)
    replication.follow_and_check("insert into t values (3, 'z', null)")


@pytest.mark.parametrize("script", ["add ts timestamp", "alter at type timestamp"])
def test_a_timestamp_without_a_zone_may_come_later(replication: Replication, script: str) -> None:
    replication.begin(
        "create table t (id int primary key, at timestamptz); insert into t values (1)"
    )
    replication.follow_and_check(
        f"alter table t {script}; insert into t values (2, '2026-01-01 12:00')"
    )
    replication.follow_and_check("update t set at = '2026-01-02'")


@ONE_FORMAT
def test_a_table_that_is_named_twice_is_refused(replication: Replication) -> None:
    replication.sql("create table t (id int primary key)")
    replication.capture("public.t")
    replication.tables = ["public.t", "public.T"]
    with pytest.raises(InvalidArgument, match="are the same"):
        replication.catch_up()


def test_two_queues_do_not_share_a_replica(replication: Replication) -> None:
    replication.begin("create table t (id int primary key)")
    replication.sql(
        "select pgque.create_queue('second'); select pgque.register_consumer('second', 'lake')"
    )
    with Client(replication.url) as client:
        capture_new(client, "second", ["public.t"])
        client.force_next_tick("second")
        client.ticker()
        claim = client.claim("second", "lake", owner="a test")
        assert claim is not None
        batch = replication.batch_of(claim)
        with pytest.raises(InvalidArgument, match=r"the replica of changes/(lake/)?public\.t"):
            replication.replicate(batch, ["public.t"])

"""Partitions that come and go: only their rows are read, and of a new empty one nothing."""

import psycopg
import pytest

from pgque_dagster.client.replicas.deletes import Deletes
from tests.support.replicas.parts import copy_in_parts, run, until_copied
from tests.support.replicas.replication import LakeReplication, PostgresReplication, Replication

TABLE = """
create table t (id int primary key, v text) partition by range (id);
create table p1 partition of t for values from (0) to (100);
insert into t values (1, 'a'), (2, 'b');
"""
P3 = "create table p3 partition of t for values from (200) to (300)"
NEW = "create table p2 partition of t for values from (100) to (200)"


@pytest.fixture
def table(replication: Replication) -> Replication:
    """A partitioned table that was copied."""
    replication.begin(TABLE)
    return replication


def slow(*values: object) -> list[object]:
    """The first value, and the others for `make slow`."""
    return [values[0], *(pytest.param(value, marks=pytest.mark.slow) for value in values[1:])]


def copies(table: Replication) -> int:
    return len([each for each in table.copied if each.startswith("copying")])


@pytest.mark.parametrize(
    "script",
    slow(
        NEW,
        "create table p2 (v text, id int not null);"
        "alter table t attach partition p2 for values from (100) to (200)",
        "create table p2 partition of t for values from (100) to (300) partition by range (id);"
        "create table p21 partition of p2 for values from (100) to (200);"
        "create table p22 partition of p2 default",
        "create table p2 partition of t default",
    ),
)
@pytest.mark.parametrize("is_one_batch", slow(False, True))
def test_a_new_empty_partition_has_nothing_copied(
    table: Replication, script: str, is_one_batch: bool
) -> None:
    before = "update t set v = 'before' where id = 1; insert into t values (3, 'c')"
    for step in (before, script, "delete from t where id = 2; update p1 set v = 'after'"):
        table.sql(step)
        if not is_one_batch:
            table.follow_and_check()
    table.follow_and_check()
    table.sql("insert into t values (150, 'x'); insert into p2 (id, v) values (151, 'y')")
    table.follow_and_check(
        "update p2 set v = 'x' where id = 151; update t set id = 152 where id = 1"
    )
    table.follow_and_check("delete from p2; insert into t values (160, 'z')")
    assert table.verify().is_equal
    assert copies(table) == 1


@pytest.mark.parametrize(
    "script",
    slow(
        f"begin; {NEW}; insert into t values (150, 'in'); commit",
        f"begin; {NEW}; insert into t values (150, 'in'); truncate p2; commit",
        f"{NEW}; insert into t values (150, 'a'), (151, 'b'); delete from p2 where id = 150",
        f"{NEW}; insert into p2 values (150, 'direct')",
        f"{NEW}; insert into t values (150, 'a'); truncate p2",
        f"{NEW}; insert into t values (150, 'a'); delete from p2; vacuum p2",
        "create table p2 (id int not null, v text); insert into p2 values (150, 'x');"
        "alter table t attach partition p2 for values from (100) to (200)",
    ),
)
@pytest.mark.parametrize("is_ticked", slow(True, False))
def test_a_partition_that_had_rows_lacks_none(
    table: Replication, script: str, is_ticked: bool
) -> None:
    table.sql("update t set v = 'before'")
    table.tick()
    for step in [script] if "begin" in script else script.split("; "):
        table.sql(step)
    table.sql("insert into t values (5, 'after')")
    if is_ticked:
        table.tick()
    table.run()
    table.follow_and_check()
    assert table.verify().is_equal


# Of a table with the partitions p1 and p2, in each of which rows were changed before.
CAME_AND_WENT = slow(
    f"drop table p2; {P3}; insert into t values (250, 'new')",
    "alter table t detach partition p2; insert into p2 values (151, 'x'), (5, 'y')",
    "alter table t detach partition p2; insert into p2 values (5, 'x'); update p2 set v = 'z';"
    "drop table p2",
    "alter table t detach partition p2; delete from p2 where id = 101; update p2 set v = 'out';"
    "alter table t attach partition p2 for values from (100) to (200); update t set v = 'again'",
    "begin; alter table t detach partition p2; insert into p2 values (102, 'in');"
    "alter table t attach partition p2 for values from (100) to (200); commit",
    "begin; insert into t values (103, 'in'); drop table p2; insert into t values (6, 'in');commit",
    "begin; drop table p2; insert into t values (6, 'in'); rollback; delete from t where id = 101",
    "begin; savepoint s; drop table p2; rollback to s; delete from p2; commit",
    f"drop table p2; {NEW}; insert into t values (101, 'same name'), (104, 'x')",
    f"drop table p2; {NEW.replace('p2', 'other')}; insert into other values (101, 'other name')",
    "create table p3 (v text, id int not null);"
    "insert into p3 values ('a', 250), ('b', 251), ('c', 252);"
    "alter table t attach partition p3 for values from (200) to (300);"
    "delete from t where id = 250; update p3 set v = 'd' where id = 251",
    f"begin; {P3}; insert into p3 values (250, 'unseen'); commit; insert into t values (251, 'x')",
    f"{P3}; insert into t values (250, 'seen'); delete from p3; insert into p3 values (251, 'x')",
    "create table p3 partition of t for values from (200) to (300) partition by list (id);"
    "create table p31 partition of p3 for values in (250); insert into p31 values (250, 'x');"
    "create table p32 partition of p3 default; insert into t values (251, 'y')",
    "create table p3 partition of t default; insert into p3 values (900, 'x'); drop table p2",
    "drop table p2; truncate t; insert into t values (7, 'x')",
    "drop table p2; alter table t add w int default 3; insert into t values (7, 'x', 4)",
    "drop table p1, p2; create table p1 partition of t default",
    "alter table t detach partition p2; alter table p2 rename to p9; alter table p1 rename to p2",
    "drop table p2; vacuum full p1",
)
COPIED = ("truncate t", "alter table t add", "vacuum full")


@pytest.mark.parametrize("script", CAME_AND_WENT)
@pytest.mark.parametrize("batches", slow("one", "several", "late"))
def test_partitions_that_come_and_go_have_only_their_rows_read(
    table: Replication, script: str, batches: str
) -> None:
    came_and_went(table, script, batches)


@pytest.mark.slow
@pytest.mark.parametrize("script", CAME_AND_WENT)
@pytest.mark.parametrize("deletes", ["soft", "history"])
def test_rows_of_partitions_that_are_gone_are_kept(
    replication: Replication, script: str, deletes: Deletes
) -> None:
    replication.keep(deletes)
    replication.begin(TABLE)
    came_and_went(replication, script, "one")


def came_and_went(table: Replication, script: str, batches: str) -> None:
    """Executes a script among changes, and compares: in one batch, in several, or late."""
    table.follow(f"{NEW}; insert into t values (100, 'a'), (101, 'b'), (4, 'd')")
    is_copied = any(each in script for each in COPIED)
    before, count = "update t set v = 'before' where id in (1, 101)", copies(table)
    steps = [script] if "begin" in script else script.split(";")
    for step in (before, *steps, "insert into t values (8, 'after'); delete from t where id = 2"):
        table.sql(step)
        if batches == "late":
            table.tick()
        if batches == "several":
            table.follow_and_check()
    if batches == "late":
        table.run()
        table.sql("update t set v = 'later' where id in (1, 8)")
    table.follow_and_check()
    table.follow_and_check(
        "update t set v = 'end'; insert into t values (9, 'end'); delete from t where id = 4"
    )
    assert table.verify().is_equal
    assert copies(table) == count or is_copied


def test_a_new_partition_during_a_copy_keeps_the_parts_that_are_done(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    replication.sql(TABLE)
    replication.sql("insert into t select n, repeat('x', 900) from generate_series(10, 90) n")
    copy_in_parts(monkeypatch)
    replication.capture("public.t")
    run(replication)
    replication.sql(f"{NEW}; update t set v = 'new' where id = 90")
    until_copied(replication, 60)
    assert copies(replication) == 1
    replication.follow("insert into p2 values (150, 'direct'); insert into t values (151, 'x')")
    assert copies(replication) == 1
    replication.check()
    assert replication.verify().is_equal


def test_late_changes_of_a_partition_that_is_being_detached_are_gone_with_it(
    table: Replication,
) -> None:
    table.follow(f"{NEW}; insert into t values (101, 'a')")
    with table.connect() as writer, table.connect() as db:
        # It sees the partition until its end.
        writer.execute("begin isolation level repeatable read; select from t")
        db.execute("set lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            db.execute("alter table t detach partition p2 concurrently")
        table.follow_and_check()
        writer.execute("insert into t values (105, 'late'); update t set v = 'late'; commit")
        table.follow("insert into p2 values (106, 'direct')")
        db.execute("alter table t detach partition p2 finalize")
    table.follow_and_check()
    assert table.verify().is_equal
    assert copies(table) == 1


def test_a_replica_that_somebody_altered_is_copied_when_a_partition_goes(
    postgres: PostgresReplication,
) -> None:
    postgres.begin(f"{TABLE} {NEW}; insert into t values (101, 'a')")
    postgres.there("alter table t drop column v")
    postgres.follow_and_check("drop table p2; insert into t values (5, 'e')")


@pytest.mark.parametrize(
    "lake", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)], indirect=True
)
def test_a_value_that_does_not_fit_is_gone_with_its_partition(lake: LakeReplication) -> None:
    lake.sql("create table t (id int primary key, v date) partition by range (id)")
    lake.sql("create table p1 partition of t for values from (0) to (100)")
    lake.begin(f"{NEW}; create table other (id int primary key)", "public.t", "public.other")
    lake.follow("insert into t values (101, 'infinity'); insert into other values (1)")
    lake.sql("drop table p2; insert into t values (2, '2026-02-02')")
    lake.end_pauses()
    lake.follow_and_check()

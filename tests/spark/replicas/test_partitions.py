"""Partitions that come and go: a new empty one has nothing copied."""

import pytest

from tests.support.replicas.parts import copy_in_parts, run, until_copied
from tests.support.replicas.replication import Replication

TABLE = """
create table t (id int primary key, v text) partition by range (id);
create table p1 partition of t for values from (0) to (100);
insert into t values (1, 'a'), (2, 'b');
"""
NEW = "create table p2 partition of t for values from (100) to (200)"


@pytest.fixture
def table(replication: Replication) -> Replication:
    """A partitioned table that was copied."""
    replication.sql(TABLE)
    replication.capture("public.t")
    replication.catch_up()
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
            table.catch_up()
            table.check()
    table.catch_up()
    table.check()
    table.sql("insert into t values (150, 'x'); insert into p2 (id, v) values (151, 'y')")
    table.sql("update p2 set v = 'x' where id = 151; update t set id = 152 where id = 1")
    table.catch_up()
    table.check()
    table.sql("delete from p2; insert into t values (160, 'z')")
    table.catch_up()
    table.check()
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
    table.catch_up()
    table.check()
    assert table.verify().is_equal


def test_a_partition_that_is_dropped_is_told_and_copied(table: Replication) -> None:
    table.sql(f"{NEW}; insert into t values (150, 'a')")
    table.catch_up()
    table.copied.clear()
    table.sql("drop table p2")
    table.catch_up()
    table.check()
    assert "partitions were created, attached, detached or dropped" in table.copied[0]


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
    replication.sql("insert into p2 values (150, 'direct'); insert into t values (151, 'x')")
    replication.catch_up()
    assert copies(replication) == 1
    replication.check()
    assert replication.verify().is_equal

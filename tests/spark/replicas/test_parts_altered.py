"""A table that is altered while it is copied in parts keeps the parts that are still right."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pgque_dagster.client.replicas.parts import PartedCopy
from pgque_dagster.client.replicas.postgres.parts import CopyInParts as IntoPostgres
from pgque_dagster.spark.replicas.parts import CopyInParts as IntoLake
from tests.support.replicas.parts import TABLE, copy_in_parts, run, until_copied
from tests.support.replicas.replication import LakeReplication, Replication

SWAP = "alter table t rename v to x; alter table t rename w to v; alter table t rename x to w"


@pytest.fixture
def table(replication: Replication, monkeypatch: pytest.MonkeyPatch) -> Replication:
    """A table that is captured, and copied in tiny parts."""
    copy_in_parts(monkeypatch)
    replication.sql(TABLE)
    replication.sql("alter table t add w text; update t set w = id")
    replication.capture("public.t")
    return replication


@pytest.fixture
def parts(replication: Replication, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The parts that are read."""
    copy: type[Any] = IntoLake if isinstance(replication, LakeReplication) else IntoPostgres
    inner, found = copy._read_parts, list[int]()

    def reading(mine: PartedCopy, numbers: Sequence[int]) -> None:
        found.extend(numbers)
        inner(mine, numbers)

    monkeypatch.setattr(copy, "_read_parts", reading)
    return found


def begun(table: Replication) -> int:
    return len([each for each in table.copied if "copying public.t in parts" in each])


@pytest.mark.parametrize(
    "steps",
    [
        ["alter table t alter v set storage extended", "grant select (v) on t to pg_monitor"],
        ["alter table t add more int", "update t set more = 7 where id % 2 = 0"],
        ["alter table t drop n", "alter table t drop small"],
        [
            "begin; update t set n = -1 where id = 3; alter table t add more text;"
            "insert into t (id, more) values (98, 'in'); commit",
            "alter table t drop more",
        ],
        [f"{SWAP}; update t set v = 'x' where id = 2; {SWAP}"],
    ],
)
def test_parts_that_are_done_stay(table: Replication, parts: list[int], steps: list[str]) -> None:
    for number, step in enumerate(steps):
        run(table)
        table.sql(f"update t set v = 'before' where id = {number + 1}")
        table.sql(step)
        table.sql(f"insert into t (id, v) values ({90 + number}, 'after')")
        table.sql(f"delete from t where id = {number + 5}")
    until_copied(table)
    assert begun(table) == 1
    assert sorted(parts) == list(range(len(parts))), "no part is read twice"
    table.check()
    table.sql("update t set v = 'later' where id = 1")
    table.catch_up()
    table.check()
    assert table.verify().is_equal


@pytest.mark.parametrize(
    "steps",
    [
        ["alter table t drop v", "alter table t add v text"],
        ["alter table t add more int default 7"],
        ["alter table t drop n; alter table t add more text; update t set more = 'm'"],
        ["alter table t add more int", "alter table t drop more; alter table t add more text"],
        ["alter table t alter small type bigint"],
    ],
)
def test_parts_that_may_have_other_values_are_read_again(
    table: Replication, parts: list[int], steps: list[str]
) -> None:
    for step in steps:
        run(table)
        table.sql(step)
    until_copied(table)
    assert begun(table) == 2
    table.check()


@pytest.mark.parametrize("undo", ["select 1", SWAP])
def test_parts_that_are_read_while_the_table_is_altered_do_not_count(
    table: Replication, parts: list[int], monkeypatch: pytest.MonkeyPatch, undo: str
) -> None:
    copy: type[Any] = IntoLake if isinstance(table, LakeReplication) else IntoPostgres
    reading, confirm = copy._read_parts, PartedCopy._confirm
    run(table)
    first = len(parts)

    def altered(step: str, call: Callable[..., None]) -> Callable[..., None]:
        def done(*arguments: Any) -> None:
            table.sql(step)
            call(*arguments)

        return done

    with monkeypatch.context() as patch:
        patch.setattr(copy, "_read_parts", altered(SWAP, reading))
        patch.setattr(copy, "_confirm", altered(undo, confirm))
        run(table)
    read = parts[first:]
    assert any("reads these parts again" in each for each in table.copied)
    until_copied(table)
    assert all(parts.count(number) == 2 for number in read)
    table.check()

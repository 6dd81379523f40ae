"""A table that is altered while it is copied in parts keeps the parts that are still right."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pgque_dagster.client.replicas.parts import PartedCopy
from pgque_dagster.client.replicas.postgres.parts import CopyInParts as IntoPostgres
from pgque_dagster.spark.replicas.parts import CopyInParts as IntoLake
from tests.support.replicas.parts import ROWS, TABLE, copy_in_parts, run, until_copied
from tests.support.replicas.replication import LakeReplication, Replication, for_table

SWAP = "alter table t rename v to x; alter table t rename w to v; alter table t rename x to w"
# What is done to a table t after the first run, and after the second.
STAY = (
    ["alter table t alter v set storage extended", "grant select (v) on t to pg_monitor"],
    ["alter table t add more int", "update t set more = 7 where id % 2 = 0"],
    ["alter table t drop n", "alter table t drop small"],
    [
        "begin; update t set n = -1 where id = 3; alter table t add more text;"
        "insert into t (id, more) values (98, 'in'); commit",
        "alter table t drop more",
    ],
    [f"{SWAP}; update t set v = 'x' where id = 2; {SWAP}"],
)
READ_AGAIN = (
    ["alter table t drop v", "alter table t add v text"],
    ["alter table t add more int default 7"],
    ["alter table t add more int", "alter table t drop more; alter table t add more text"],
    ["alter table t alter small type bigint"],
)


@pytest.fixture
def parts(replication: Replication, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The parts that are read, by table. Each table is copied in tiny ones."""
    copy_in_parts(monkeypatch, width=2)
    copy: type[Any] = IntoLake if isinstance(replication, LakeReplication) else IntoPostgres
    inner, found = copy._read_parts, defaultdict[str, list[int]](list)

    def reading(mine: PartedCopy, numbers: Sequence[int]) -> None:
        found[mine._source.name].extend(numbers)
        inner(mine, numbers)

    monkeypatch.setattr(copy, "_read_parts", reading)
    return found


def capture(replication: Replication, count: int) -> list[str]:
    names = [f"public.t{number}" for number in range(count)]
    few = TABLE.replace(f"(1, {ROWS})", "(1, 10)")
    table = f"{few}; alter table t add w text; update t set w = id;"
    replication.sql("".join(for_table(name, table) for name in names))
    replication.capture(*names)
    return names


def alter(replication: Replication, names: list[str], cases: tuple[list[str], ...]) -> None:
    """Changes rows before and after each step."""
    for number in range(2):
        run(replication)
        for name, steps in zip(names, cases, strict=True):
            for step in steps[number : number + 1]:
                for script in (
                    f"update t set w = 'before' where id = {number + 1}",
                    step,
                    f"insert into t (id, w) values ({90 + number}, 'after');"
                    f"delete from t where id = {number + 5}",
                ):
                    replication.sql(for_table(name, script))
    until_copied(replication)


def begun(replication: Replication, table: str) -> int:
    return len([each for each in replication.copied if f"copying {table} in parts" in each])


def test_parts_that_are_done_stay(replication: Replication, parts: dict[str, list[int]]) -> None:
    names = capture(replication, len(STAY))
    alter(replication, names, STAY)
    for name in names:
        assert begun(replication, name) == 1
        assert sorted(parts[name]) == list(range(len(parts[name]))), "no part is read twice"
    replication.check()
    for name in names:
        replication.sql(f"update {name} set v = 'later' where id = 1")
    replication.follow_and_check()
    assert all(replication.verify(name).is_equal for name in names)


def test_parts_that_may_have_other_values_are_read_again(
    replication: Replication, parts: dict[str, list[int]]
) -> None:
    names = capture(replication, len(READ_AGAIN))
    alter(replication, names, READ_AGAIN)
    assert [begun(replication, name) for name in names] == [2] * len(names)
    replication.check()


def test_parts_that_are_read_while_the_table_is_altered_do_not_count(
    replication: Replication, parts: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is as before when they were read."""
    names = capture(replication, 2)
    copy: type[Any] = IntoLake if isinstance(replication, LakeReplication) else IntoPostgres
    reading, confirm = copy._read_parts, PartedCopy._confirm
    run(replication)
    first = {name: len(parts[name]) for name in names}

    def altered(names: list[str], call: Callable[..., None]) -> Callable[..., None]:
        def done(mine: PartedCopy, *arguments: Any) -> None:
            if mine._source.name in names:
                replication.sql(for_table(mine._source.name, SWAP))
            call(mine, *arguments)

        return done

    with monkeypatch.context() as patch:
        patch.setattr(copy, "_read_parts", altered(names, reading))
        patch.setattr(copy, "_confirm", altered(names[:1], confirm))
        run(replication)
    read = {name: parts[name][first[name] :] for name in names}
    assert sum("reads these parts again" in each for each in replication.copied) == 2
    until_copied(replication)
    for name in names:
        assert all(parts[name].count(number) == 2 for number in read[name])
    replication.check()

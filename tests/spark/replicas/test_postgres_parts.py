"""A large table is copied into PostgreSQL in parts by several runs, as test_parts.py has it."""

from collections.abc import Sequence
from typing import Any

import pytest

from pgque_dagster.client.replicas.deletes import HISTORY
from pgque_dagster.client.replicas.outcome import Apart, Replicated
from pgque_dagster.client.replicas.postgres import parts
from pgque_dagster.client.replicas.postgres.parts import CopyInParts
from tests.support.replicas.apart import end_leases, repair
from tests.support.replicas.parts import copy_in_parts
from tests.support.replicas.replication import PostgresReplication, with_columns_of
from tests.support.servers.logins import as_login

ROWS = 16
# Each block has two or three rows.
TABLE = f"""
create table t (id int primary key, v text, n numeric(12, 2), seen timestamp)
with (fillfactor = 30, autovacuum_enabled = off);
alter table t alter v set storage plain;
insert into t select n, repeat('x', 900), n / 4.0, '2026-01-01' from generate_series(1, {ROWS}) n;
"""


@pytest.fixture
def table(postgres: PostgresReplication, monkeypatch: pytest.MonkeyPatch) -> PostgresReplication:
    copy_in_parts(monkeypatch)
    postgres.sql(TABLE)
    postgres.sql("create table other (id int primary key)")
    postgres.capture("public.t", "public.other")
    return postgres


def run(table: PostgresReplication) -> Sequence[Replicated | Apart]:
    table.tick()
    return table.run()


def until_copied(table: PostgresReplication, most: int = 20) -> None:
    """Applies batches until no table is copied any more."""
    for _ in range(most):
        if not any(isinstance(each, Apart) for each in run(table)):
            return
    raise AssertionError("it is never copied")


def staged(table: PostgresReplication) -> list[str]:
    """The tables of copies in the target."""
    query = "select relname::text from pg_class where relname ~ '^__pgque' and relkind = 'r'"
    return [name for (name,) in table.there(query)]


def test_rows_that_move_between_parts_are_there_once(table: PostgresReplication) -> None:
    runs, apart = 0, True
    while apart:
        done = run(table)
        apart = any(isinstance(each, Apart) and each.name == "public.t" for each in done)
        # From parts that are read into those that are not, and the other way.
        table.sql(
            f"update t set n = n + 1 where id % 7 = {runs % 7};"
            f"update t set id = id + 1000 where id = {runs};"
            f"delete from t where id = {ROWS - runs}; insert into t values ({100 + runs}, 'new');"
            f"insert into other values ({runs})"
        )
        assert len(staged(table)) == 2 * sum(isinstance(each, Apart) for each in done)
        runs += 1
    assert runs >= 3
    table.catch_up()
    table.check()
    ((key,),) = table.there(
        "select conname::text from pg_constraint where conrelid = 't'::regclass and contype = 'p'"
    )
    assert key == "t_pkey"
    table.sql("update t set n = -1; delete from t where id = 5")
    table.catch_up()
    table.check()
    assert table.verify().is_equal
    assert len([each for each in table.copied if "copying public.t" in each]) == 1


def test_an_attempt_goes_on_with_the_parts_of_one_that_was_killed(
    table: PostgresReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    inner, pipe, piped = CopyInParts._read_parts, parts.pipe, iter(range(9))

    def reading(copy: CopyInParts, numbers: Sequence[int]) -> None:
        inner(copy, numbers)
        read.extend(numbers)
        raise KeyboardInterrupt

    def piping(*arguments: Any) -> tuple[int, int]:
        found = pipe(*arguments)
        if next(piped) == 2:  # After at least one part was recorded.
            raise KeyboardInterrupt
        return found

    for number, (owner, name, function) in enumerate(
        [
            (CopyInParts, "_read_parts", reading),
            (parts, "pipe", piping),
            (CopyInParts, "_read_parts", reading),
        ]
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, function)
            table.tick()
            with pytest.raises(KeyboardInterrupt):
                table.run()
        table.sql(f"update t set id = id + 500 where id % 5 = {number}")
        end_leases(table)
    assert len(read) == 6
    monkeypatch.setattr(
        CopyInParts,
        "_read_parts",
        lambda copy, numbers: (read.extend(numbers), inner(copy, numbers))[1],
    )
    until_copied(table)
    table.catch_up()
    assert sorted(read) == sorted({*range(max(read) + 1)})
    table.check()
    assert len([each for each in table.copied if "copying public.t" in each]) == 1


@pytest.mark.parametrize(
    "change",
    ["vacuum full t", pytest.param("truncate t; insert into t values (1)", marks=pytest.mark.slow)],
)
def test_a_replica_that_is_there_gets_only_rows_that_differ(
    table: PostgresReplication, change: str
) -> None:
    table.keep(HISTORY)
    until_copied(table)
    before = table.replica("public.t")
    repair(table, "t")
    run(table)
    table.sql("update t set n = 0 where id in (1, 9)")
    for statement in change.split("; "):
        table.sql(statement)
    until_copied(table)
    table.catch_up()
    source = table.source("public.t")
    assert with_columns_of(table.live("public.t"), source) == source
    assert len([row for row in table.replica("public.t") if row in before]) == (
        0 if "truncate" in change else ROWS - 2
    )
    assert staged(table) == []


@pytest.mark.parametrize(
    "damage",
    [
        "comment on table {} is 'mine'",
        pytest.param("drop table {}", marks=pytest.mark.slow),
        "the table is small now",
    ],
)
def test_a_copy_that_cannot_go_on_is_removed(
    table: PostgresReplication, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    run(table)
    records = sorted(staged(table))[1]
    if "{}" in damage:
        table.there(damage.format(records))
    else:
        monkeypatch.undo()
        repair(table, "t")
    until_copied(table)
    table.catch_up()
    table.check()
    assert staged(table) == []


def test_a_table_whose_new_partition_may_not_be_read_is_copied_in_parts(
    postgres: PostgresReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, login = postgres.url, as_login(postgres.url, "pgque_reader", "pgque_writer")
    postgres.sql("create table t (id int primary key) partition by range (id)")
    postgres.sql("create table p1 partition of t for values from (0) to (100)")
    postgres.sql("insert into t values (1); grant select on t to login_reader_writer")
    postgres.capture("public.t")
    postgres.catch_up()
    copy_in_parts(monkeypatch)
    postgres.sql("create table p2 partition of t for values from (100) to (200)")
    postgres.sql("insert into p2 values (101); select pgque.capture('t', 'changes')")
    postgres.tick()
    postgres.url = login
    assert [type(each) for each in postgres.run()] == [Replicated]
    assert any(text.startswith("copying public.t in parts") for text in postgres.copied)
    postgres.url = owner
    postgres.check()

"""A large table is copied in parts by several runs, and has the rows of one tick in the end."""

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from pgque_dagster.client.replicas.deletes import HISTORY
from pgque_dagster.client.replicas.outcome import Apart, Replicated
from pgque_dagster.client.replicas.postgres import parts as postgres_parts
from pgque_dagster.client.replicas.postgres.parts import CopyInParts as IntoPostgres
from pgque_dagster.spark.replicas import parts
from tests.support.replicas.apart import needed, rotate
from tests.support.replicas.parts import (
    ROWS,
    TABLE,
    copy_in_parts,
    left_behind,
    run,
    status,
    until_copied,
)
from tests.support.replicas.replication import (
    LakeReplication,
    PostgresReplication,
    Replication,
    with_columns_of,
)
from tests.support.servers.logins import as_login


@pytest.fixture
def in_postgres(
    postgres: PostgresReplication, monkeypatch: pytest.MonkeyPatch
) -> PostgresReplication:
    copy_in_parts(monkeypatch, width=3)
    postgres.sql(f"{TABLE} create table other (id int primary key)")
    postgres.capture("public.t", "public.other")
    return postgres


def staged(table: PostgresReplication) -> list[str]:
    """The tables of copies in the target."""
    query = "select relname::text from pg_class where relname ~ '^__pgque' and relkind = 'r'"
    return [name for (name,) in table.there(query)]


@pytest.mark.in_the_lake
def test_rows_that_move_between_parts_are_there_once(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in_parts(monkeypatch)
    replication.sql(TABLE)
    replication.capture("public.t")
    (apart,) = run(replication)
    assert isinstance(apart, Apart)
    assert apart.reason == ""
    assert apart.copying.startswith("4 of ")
    runs = 1
    while isinstance(apart, Apart):
        # From parts that are read into those that are not, and the other way.
        replication.sql(
            f"update t set n = n + 1 where id % 7 = {runs % 7};"
            f"update t set id = id + 1000 where id = {runs};"
            f"delete from t where id = {ROWS - runs}; insert into t values ({100 + runs}, 'new')"
        )
        assert isinstance(replication, LakeReplication) or len(staged(replication)) == 2
        (apart,) = run(replication)
        runs += 1
    assert runs >= 2
    replication.check()
    assert isinstance(apart, Replicated)
    assert apart.is_copied
    assert apart.rows == len(replication.source("public.t"))
    if isinstance(replication, LakeReplication):
        assert len([each for each in replication.commits("public.t") if each]) == 1
        for path in left_behind(replication):
            os.utime(path, (0, 0))
        replication.sink("public.t").maintain(replication.spark, replication.url)
        assert left_behind(replication) == []
    else:
        assert staged(replication) == []
        key = "select conname from pg_constraint where conrelid = 't'::regclass and contype = 'p'"
        assert replication.there(key) == [("t_pkey",)]
    replication.follow_and_check("update t set n = -1; delete from t where id = 5")
    assert len([each for each in replication.copied if "copying public.t" in each]) == 1


@pytest.mark.slow
def test_the_other_tables_go_on_and_events_are_kept(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_in_parts(monkeypatch, width=1)
    run(table)
    table.capture("public.other")
    table.sql("update t set n = 0 where id = 1")
    run(table)
    kept = needed(table)
    for number in (2, 3):
        table.sql(f"insert into other values ({number})")
        table.sql(f"update t set n = {number} where id = {number}")
        run(table)
        rotate(table)
        assert needed(table) == kept
    found = status(table)
    assert (found.state, found.failure) == ("copying", None)
    assert found.copying is not None
    with table.connect() as db:
        detail = "select status, detail from pgque.replica_health where check_name like '%public.t'"
        ((state, told),) = db.execute(detail).fetchall()
    assert state == "warning"
    assert found.copying in told
    until_copied(table)
    table.check()
    assert needed(table) > kept
    assert status(table).state == "not verified"
    assert table.verify().is_equal


def test_an_attempt_goes_on_with_the_parts_of_one_that_was_killed(
    table: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    inner = parts.CopyInParts._read_parts

    def reading(copy: parts.CopyInParts, numbers: list[int]) -> None:
        inner(copy, numbers)
        read.extend(numbers)
        raise KeyboardInterrupt

    copy_in_parts(monkeypatch, width=3)
    with monkeypatch.context() as patch:
        patch.setattr(parts.CopyInParts, "_read_parts", reading)
        for number in range(2):
            with pytest.raises(KeyboardInterrupt):
                table.catch_up()
            table.sql(f"update t set id = id + 500 where id % 5 = {number}")
            table.end_leases()
    # A record that was not written completely.
    record = sorted(left_behind(table), key=lambda path: len(path.name))[-1]
    lost = json.loads(record.read_text())["groups"][0]["parts"]
    record.write_text(record.read_text()[:-5])
    monkeypatch.setattr(
        parts.CopyInParts,
        "_read_parts",
        lambda copy, numbers: (read.extend(numbers), inner(copy, numbers))[1],
    )
    until_copied(table)
    assert sorted(read) == sorted([*range(max(read) + 1), *lost])
    table.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "undo"),
    [
        ("alter table t rename to gone", "alter table gone rename to t"),
        ("drop table t", f"{TABLE} select pgque.capture('t', 'changes')"),
        ("alter table t drop constraint t_pkey", "alter table t add primary key (id)"),
        ("insert into t values (0, 'y', 1, 1, '-infinity')", "delete from t where id = 0"),
    ],
)
def test_a_copy_that_fails_goes_on_once_the_cause_is_gone(
    table: LakeReplication, change: str, undo: str
) -> None:
    table.capture("public.other")
    run(table)
    done = status(table).copying
    table.sql(change)
    for _ in range(20):
        run(table)
        table.sql("update pgque.replica_apart set retry_at = now() where reason = ''")
        if status(table).failure:
            break
    found = status(table)
    assert (found.state, found.copying is not None) == ("apart", True)
    assert int((found.copying or "").split()[0]) >= int((done or "").split()[0])
    table.sql(undo)
    table.end_pauses()
    until_copied(table)
    table.check()


@pytest.mark.slow
def test_a_table_that_grows_or_is_emptied_meanwhile(table: LakeReplication) -> None:
    run(table)
    table.sql("insert into t select n, 'grown' from generate_series(2000, 3000) n")
    runs = until_copied(table)
    assert runs < 20
    table.check()
    table.repair()
    run(table)
    table.sql("delete from t")
    table.sql("vacuum t")
    until_copied(table)
    table.check()
    assert table.replica("public.t") == []


def test_an_attempt_goes_on_with_the_parts_of_one_that_was_killed_in_postgres(
    in_postgres: PostgresReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    inner, pipe, piped = IntoPostgres._read_parts, postgres_parts.pipe, iter(range(9))

    def reading(copy: IntoPostgres, numbers: Sequence[int]) -> None:
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
            (IntoPostgres, "_read_parts", reading),
            (postgres_parts, "pipe", piping),
            (IntoPostgres, "_read_parts", reading),
        ]
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, function)
            with pytest.raises(KeyboardInterrupt):
                in_postgres.catch_up()
        in_postgres.sql(f"update t set id = id + 500 where id % 5 = {number}")
        in_postgres.end_leases()
    assert len(read) == 6
    monkeypatch.setattr(
        IntoPostgres,
        "_read_parts",
        lambda copy, numbers: (read.extend(numbers), inner(copy, numbers))[1],
    )
    until_copied(in_postgres)
    in_postgres.catch_up()
    assert sorted(read) == sorted({*range(max(read) + 1)})
    in_postgres.check()
    assert len([each for each in in_postgres.copied if "copying public.t" in each]) == 1


@pytest.mark.parametrize(
    "change",
    ["vacuum full t", pytest.param("truncate t; insert into t values (1)", marks=pytest.mark.slow)],
)
def test_a_replica_that_is_there_gets_only_rows_that_differ(
    in_postgres: PostgresReplication, change: str
) -> None:
    in_postgres.keep(HISTORY)
    until_copied(in_postgres)
    before = in_postgres.replica("public.t")
    in_postgres.repair()
    run(in_postgres)
    in_postgres.sql("update t set n = 0 where id in (1, 9)")
    for statement in change.split("; "):
        in_postgres.sql(statement)
    until_copied(in_postgres)
    in_postgres.catch_up()
    source = in_postgres.source("public.t")
    assert with_columns_of(in_postgres.live("public.t"), source) == source
    assert len([row for row in in_postgres.replica("public.t") if row in before]) == (
        0 if "truncate" in change else ROWS - 2
    )
    assert staged(in_postgres) == []


@pytest.mark.parametrize(
    "damage",
    [
        "comment on table {} is 'mine'",
        pytest.param("drop table {}", marks=pytest.mark.slow),
        "the table is small now",
    ],
)
def test_a_copy_that_cannot_go_on_is_removed(
    in_postgres: PostgresReplication, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    run(in_postgres)
    records = sorted(staged(in_postgres))[1]
    if "{}" in damage:
        in_postgres.there(damage.format(records))
    else:
        monkeypatch.undo()
        in_postgres.repair()
    until_copied(in_postgres)
    in_postgres.follow_and_check()
    assert staged(in_postgres) == []


def test_a_table_whose_new_partition_may_not_be_read_is_copied_in_parts(
    postgres: PostgresReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, login = postgres.url, as_login(postgres.url, "pgque_reader", "pgque_writer")
    postgres.sql("create table t (id int primary key) partition by range (id)")
    postgres.sql("create table p1 partition of t for values from (0) to (100)")
    postgres.begin("insert into t values (1); grant select on t to login_reader_writer")
    copy_in_parts(monkeypatch)
    postgres.sql("create table p2 partition of t for values from (100) to (200)")
    postgres.sql("insert into p2 values (101); select pgque.capture('t', 'changes')")
    postgres.tick()
    postgres.url = login
    assert [type(each) for each in postgres.run()] == [Replicated]
    assert any(text.startswith("copying public.t in parts") for text in postgres.copied)
    postgres.url = owner
    postgres.check()

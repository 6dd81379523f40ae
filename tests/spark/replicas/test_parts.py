"""A large table is copied in parts by several runs, and has the rows of one tick in the end."""

import json
import os

import pytest

from pgque_dagster.client.replicas.outcome import Apart, Replicated
from pgque_dagster.spark.replicas import parts
from tests.support.replicas.apart import end_leases, needed, repair, rotate
from tests.support.replicas.parts import (
    ROWS,
    TABLE,
    copy_in_parts,
    left_behind,
    run,
    status,
    until_copied,
)
from tests.support.replicas.replication import LakeReplication


def test_rows_that_move_between_parts_are_there_once(table: LakeReplication) -> None:
    (apart,) = run(table)
    assert isinstance(apart, Apart)
    assert apart.reason == ""
    assert apart.copying is not None
    assert apart.copying.startswith("3 of ")
    runs = 1
    while isinstance(apart, Apart):
        # From parts that are read into those that are not, and the other way.
        table.sql(
            f"update t set n = n + 1 where id % 7 = {runs % 7};"
            f"update t set id = id + 1000 where id = {runs};"
            f"delete from t where id = {ROWS - runs}; insert into t values ({100 + runs}, 'new')"
        )
        (apart,) = run(table)
        runs += 1
    assert runs >= 3
    table.check()
    assert isinstance(apart, Replicated)
    assert apart.is_copied
    assert apart.rows == len(table.source("public.t"))
    assert len([each for each in table.commits("public.t") if each]) == 1
    for path in left_behind(table):
        os.utime(path, (0, 0))
    table.sink("public.t").maintain(table.spark, table.url)
    assert left_behind(table) == []
    table.sql("update t set n = -1; delete from t where id = 5")
    table.catch_up()
    table.check()
    assert len([each for each in table.copied if "copying public.t" in each]) == 1


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

    with monkeypatch.context() as patch:
        patch.setattr(parts.CopyInParts, "_read_parts", reading)
        for number in range(3):
            table.tick()
            with pytest.raises(KeyboardInterrupt):
                table.run()
            table.sql(f"update t set id = id + 500 where id % 5 = {number}")
            end_leases(table)
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
    "change",
    [
        "vacuum full t",
        "truncate t; insert into t values (1, 'after')",
        "alter table t add column more int default 7; alter table t drop column n",
    ],
)
def test_a_table_that_is_altered_meanwhile_is_copied_anew(
    table: LakeReplication, change: str
) -> None:
    run(table)
    run(table)
    for statement in change.split("; "):
        table.sql(statement)
    run(table)
    assert len([each for each in table.copied if "copying public.t in parts" in each]) == 2
    until_copied(table)
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
    table.sql("update pgque.replica_apart set retry_at = now()")
    until_copied(table)
    table.check()


@pytest.mark.slow
def test_a_table_that_grows_or_is_emptied_meanwhile(table: LakeReplication) -> None:
    run(table)
    table.sql("insert into t select n, 'grown' from generate_series(2000, 3000) n")
    runs = until_copied(table)
    assert runs < 20
    table.check()
    repair(table, "t")
    run(table)
    table.sql("delete from t")
    table.sql("vacuum t")
    until_copied(table)
    table.check()
    assert table.replica("public.t") == []


@pytest.mark.slow
def test_a_repair_begins_the_copy_again(table: LakeReplication) -> None:
    run(table)
    repair(table, "t")
    run(table)
    assert len([each for each in table.copied if "copying public.t in parts" in each]) == 2
    until_copied(table)
    table.check()

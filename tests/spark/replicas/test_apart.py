"""A table that fails stands apart, its neighbours go on, and it joins again by itself."""

import psycopg
import pytest

from pgque_dagster.client import Client, LeaseLost
from pgque_dagster.client.captured_tables import copy_again
from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas.apart import Apart
from pgque_dagster.client.replicas.deletes import HISTORY, SOFT
from pgque_dagster.client.table_spec import TableSpec
from tests.client.consumer.support import expire_leases
from tests.support.logins import as_login
from tests.support.replica_faults import Faults, Killed
from tests.support.replication import (
    CONSUMER,
    QUEUE,
    DeltaReplication,
    LakeReplication,
    PostgresReplication,
    Replication,
)

TABLES = ["public.a", "public.b", "public.c"]
BAD, GOOD = "infinity", "2026-01-01"


def prepare(replication: Replication) -> None:
    """Three tables that are copied, and that a batch may add rows to."""
    for table in "abc":
        replication.sql(
            f"create table {table} (id int primary key, d date);"
            f"insert into {table} values (1, '{GOOD}')"
        )
    replication.capture(*TABLES)
    replication.catch_up()
    if isinstance(replication, PostgresReplication):
        for table in "abc":
            replication.there(f"alter table {table} add check (d < 'infinity')")


def insert(replication: Replication, number: int, tables: str = "abc") -> None:
    for table in tables:
        replication.sql(f"insert into {table} values ({number}, '{GOOD}')")


def spoil(replication: Replication, number: int, table: str = "b", value: str = BAD) -> None:
    replication.sql(f"insert into {table} values ({number}, '{value}')")


def mend(replication: Replication, table: str = "b") -> None:
    replication.sql(f"update {table} set d = '{GOOD}' where d = '{BAD}'")


def prepare_batch(replication: Replication, joins: bool) -> None:
    """A batch at which b stands apart, or joins the others again."""
    prepare(replication)
    spoil(replication, 2)
    insert(replication, 3)
    if joins:
        replication.catch_up()
        insert(replication, 4)
        mend(replication)
        end_pauses(replication)
    replication.tick()


def repair(replication: Replication, table: str) -> None:
    with Client(replication.url) as client:
        copy_again(client, QUEUE, CONSUMER, f"public.{table}")


def end_pauses(replication: Replication) -> None:
    replication.sql("update pgque.replica_apart set retry_at = clock_timestamp()")


def noted(replication: Replication) -> list[tuple[str, int, int]]:
    with replication.connect() as db:
        return db.execute(
            "select table_name, tick_id, attempts from pgque.replica_apart order by 1"
        ).fetchall()


def needed(replication: Replication) -> int:
    """The first tick after which the queue's events are kept."""
    with replication.connect() as db:
        found = db.execute("select first_tick from pgque.needed_tick").fetchall()
        return int(found[0][0])


def end_leases(replication: Replication) -> None:
    with psycopg.connect(replication.url, autocommit=True) as db:
        expire_leases(db)


def rotate(replication: Replication) -> None:
    """Rotates as often as it takes to empty each event table that nobody needs."""
    replication.sql("select pgque.set_queue_config('changes', 'rotation_period', '1 microsecond')")
    for _ in range(4):
        replication.sql("select pgque.maint_rotate_tables_step1('changes')")
        replication.sql("select pgque.maint_rotate_tables_step2()")


def test_a_table_that_fails_stands_apart_and_joins_again(replication: Replication) -> None:
    prepare(replication)
    stands = replication.last_tick()
    insert(replication, 2)
    spoil(replication, 3)
    replication.tick()
    *others, apart = replication.run()
    assert [each.spec.source for each in others] == ["public.a", "public.c"]
    assert isinstance(apart, Apart)
    assert (apart.name, apart.tick_id) == ("public.b", stands)
    assert ("infinity" if isinstance(replication, LakeReplication) else "check") in apart.reason
    replication.check("public.a", "public.c")
    assert len(replication.replica("public.b")) == 1
    for number in (4, 5, 6):
        insert(replication, number)
        replication.sql("delete from b where id = 1; update a set d = null where id = 1")
        replication.catch_up()
        rotate(replication)
    replication.check("public.a", "public.c")
    assert noted(replication) == [("public.b", stands, 1)], (
        "it is not tried before its pause is over"
    )
    assert needed(replication) == stands
    assert not replication.verify("public.b").is_equal

    end_pauses(replication)
    insert(replication, 7)
    replication.catch_up()
    assert noted(replication) == [("public.b", stands, 2)]

    mend(replication)
    insert(replication, 8, "ac")
    end_pauses(replication)
    replication.catch_up()

    assert noted(replication) == []
    assert needed(replication) > stands
    replication.check()
    assert all(replication.verify(table).is_equal for table in TABLES)
    assert len([each for each in replication.copied if "copying" in each]) == 3
    insert(replication, 9)
    replication.catch_up()
    replication.check()


@pytest.mark.parametrize("tables", ["b", "abc"])
def test_the_only_table_and_all_tables_stand_apart_by_their_values(
    replication: Replication, tables: str
) -> None:
    prepare(replication)
    if tables == "b":
        replication.sql("drop table a, c")
        replication.tables = ["public.b"]
        replication.catch_up()
    stands = replication.last_tick()
    for table in tables:
        spoil(replication, 3, table)
    replication.tick()
    # An attempt whose ack is missing: the next one begins with what it has left.
    assert all(isinstance(each, Apart) for each in replication.run(ack=False))
    assert noted(replication) == []
    replication.run()
    expected = [(f"public.{table}", stands, 1) for table in tables]
    assert noted(replication) == expected
    # Nothing is due, and the next batch is acked, with its events kept.
    insert(replication, 4, tables)
    replication.catch_up()
    rotate(replication)
    assert noted(replication) == expected
    assert needed(replication) == stands
    for table in tables:
        replication.sql(f"update {table} set d = '{GOOD}' where d = '{BAD}'")
        replication.sql(f"delete from {table} where id = 1")
    insert(replication, 5, tables)
    end_pauses(replication)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()
    assert len([each for each in replication.copied if "copying" in each]) == 3
    insert(replication, 6, tables)
    replication.catch_up()
    replication.check()


def test_the_run_fails_if_all_tables_fail_by_more_than_values(delta: DeltaReplication) -> None:
    prepare(delta)
    spoil(delta, 3, "a")
    delta.sql("alter table b rename to other; drop table c")
    delta.tick()
    with pytest.raises(InvalidArgument, match=r"no table public\.b"):
        delta.run()
    assert noted(delta) == []


def test_two_tables_that_stand_apart_at_different_ticks_join_each_by_itself(
    replication: Replication,
) -> None:
    prepare(replication)
    spoil(replication, 2, "a")
    insert(replication, 3)
    replication.catch_up()
    insert(replication, 4)
    spoil(replication, 5, "b")
    replication.catch_up()
    insert(replication, 6)
    replication.catch_up()
    first, second = noted(replication)
    assert first[1] < second[1]
    assert needed(replication) == first[1]
    mend(replication, "a")
    end_pauses(replication)
    replication.catch_up()
    assert [name for name, *_ in noted(replication)] == ["public.b"]
    assert needed(replication) == second[1]
    replication.check("public.a", "public.c")
    replication.sql(f"delete from b where d = '{BAD}'")
    end_pauses(replication)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()


@pytest.mark.parametrize("deletes", [SOFT, HISTORY])
def test_what_a_table_missed_is_kept_as_a_batch_would(
    delta: DeltaReplication, deletes: str
) -> None:
    delta.keep(deletes)  # type: ignore[arg-type]
    prepare(delta)
    spoil(delta, 2)
    delta.catch_up()
    delta.sql(f"delete from b where id = 1; update b set d = '{GOOD}' where id = 2")
    insert(delta, 3)
    end_pauses(delta)
    delta.catch_up()
    assert noted(delta) == []
    assert {row["id"] for row in delta.replica("public.b")} == {1, 2, 3}
    assert {row["id"] for row in delta.live("public.b")} == {2, 3}
    assert delta.verify("public.b").is_equal


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_right_that_is_revoked_and_granted(replication: Replication) -> None:
    prepare(replication)
    owner = replication.url
    login = as_login(owner, "pgque_reader", "pgque_writer")
    replication.sql("grant select on a, b, c to login_reader_writer")
    replication.sql("revoke select on b from login_reader_writer")
    insert(replication, 2)
    replication.tick()
    replication.url = login
    *_, apart = replication.run()
    replication.url = owner
    assert isinstance(apart, Apart)
    assert "grant select on public.b to login_reader_writer" in apart.reason
    replication.check("public.a", "public.c")
    replication.sql("grant select on b to login_reader_writer")
    insert(replication, 3)
    replication.tick()
    end_pauses(replication)
    replication.url = login
    replication.run()
    replication.url = owner
    replication.check()


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
@pytest.mark.parametrize(
    ("script", "way_out", "reason"),
    [
        ("alter table b detach partition b2", "select pgque.uncapture('b2', 'changes')", "several"),
        ("alter table b rename to other", "alter table other rename to b", "no table public.b"),
        (
            "drop table b",
            "create table b (id int primary key, d date); select pgque.capture('b', 'changes')",
            "no table public.b",
        ),
    ],
)
def test_a_table_that_is_not_what_it_was(
    replication: Replication, script: str, way_out: str, reason: str
) -> None:
    replication.sql(
        "create table b (id int primary key, d date) partition by range (id);"
        "create table b1 partition of b for values from (0) to (10);"
        "create table b2 partition of b for values from (10) to (20);"
        "create table a (id int primary key, d date)"
    )
    replication.capture("public.a", "public.b")
    insert(replication, 1, "ab")
    replication.catch_up()
    replication.sql(script)
    insert(replication, 2, "a")
    replication.sql("do $$ begin insert into other values (3); exception when others then end $$")
    replication.tick()
    *_, apart = replication.run()
    assert isinstance(apart, Apart)
    assert reason in apart.reason
    replication.check("public.a")
    replication.sql(way_out)
    insert(replication, 4, "ab")
    end_pauses(replication)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()


POINTS = {
    "delta": ("after commit", "before ack"),
    "iceberg": ("after commit",),
    "postgres": ("before record", "after record", "before ack"),
}


@pytest.mark.parametrize(
    ("replication", "point"),
    [(kind, point) for kind, points in POINTS.items() for point in points],
    indirect=["replication"],
)
@pytest.mark.parametrize("joins", [False, True])
def test_killed_at_parting_and_at_joining(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, point: str, joins: bool
) -> None:
    prepare_batch(replication, joins)
    faults = Faults(replication, monkeypatch)

    def die() -> None:
        raise Killed

    # The second commit of a lake's run is that of b when it joins, and that of c when it does not.
    faults.set(point, int("commit" in point), die)
    with pytest.raises(Killed):
        replication.run()
    assert faults.has_fired
    end_leases(replication)
    insert(replication, 5)
    replication.catch_up()
    replication.check("public.a", "public.c")
    mend(replication)
    end_pauses(replication)
    replication.catch_up()
    insert(replication, 6)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()
    assert len([each for each in replication.copied if "copying" in each]) == 3


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_table_that_has_the_batch_and_fails_at_the_next_attempt_adds_no_row_twice(
    replication: Replication,
) -> None:
    replication.sql("create table l (id int, d date); create table a (id int primary key)")
    replication.capture(TableSpec("public.l", mode="append"), "public.a")
    replication.catch_up()
    replication.sql("insert into l values (1); insert into a values (1)")
    replication.tick()
    replication.run(ack=False)
    replication.sql("alter table l rename to other; insert into a values (2)")
    replication.run()
    assert [name for name, *_ in noted(replication)] == ["public.l"]
    replication.sql("insert into other values (2); insert into a values (3)")
    replication.catch_up()
    replication.sql("alter table other rename to l; insert into l values (3)")
    end_pauses(replication)
    replication.tick()
    replication.run(ack=False)
    end_pauses(replication)
    replication.run()
    assert noted(replication) == []
    replication.check()
    replication.sql("insert into l values (4)")
    replication.catch_up()
    replication.check()


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_stale_run_parts_and_joins_nothing(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(replication)
    spoil(replication, 2)
    insert(replication, 3)
    replication.tick()

    def others_go_on() -> None:
        end_leases(replication)
        mend(replication)
        replication.run()
        insert(replication, 4)
        replication.catch_up()

    Faults(replication, monkeypatch).set("before ack", 0, others_go_on)
    with pytest.raises(Exception, match="batch"):
        replication.run()
    end_pauses(replication)
    insert(replication, 5)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
@pytest.mark.parametrize(
    "script",
    [
        "select pgque.seek('changes', 'lake', 'latest', i_skip => true)",
        "select pgque.renew_incarnation()",
    ],
)
def test_a_consumer_that_is_moved_or_restored_has_the_table_copied(
    replication: Replication, script: str
) -> None:
    if "renew" in script and isinstance(replication, DeltaReplication):
        pytest.skip("its replicas are refused")
    prepare(replication)
    spoil(replication, 2)
    replication.catch_up()
    insert(replication, 3)
    replication.tick()
    replication.sql(script)
    assert needed(replication) > noted(replication)[0][1], "nothing is kept for a copy"
    mend(replication)
    end_pauses(replication)
    replication.tick()
    if "renew" in script:
        return
    replication.catch_up()
    assert noted(replication) == []
    replication.check()


def test_a_repair_has_it_copied_at_once_and_frees_what_is_kept(delta: DeltaReplication) -> None:
    prepare(delta)
    spoil(delta, 2)
    delta.catch_up()
    mend(delta)
    insert(delta, 3)
    stands = noted(delta)[0][1]
    with Client(delta.url) as client:
        copy_again(client, QUEUE, CONSUMER, "public.b")
    # The last two ticks always stay.
    delta.tick()
    assert needed(delta) > stands
    delta.catch_up()
    assert noted(delta) == []
    delta.check()
    assert delta.verify("public.b").is_equal


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_repair_that_is_asked_for_during_an_attempt_waits_for_no_pause(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(replication)
    spoil(replication, 2)
    replication.catch_up()
    insert(replication, 3)
    end_pauses(replication)
    replication.tick()
    faults = Faults(replication, monkeypatch)
    faults.set("before ack", 0, lambda: repair(replication, "b"))
    replication.run()
    assert faults.has_fired
    assert noted(replication) != []
    mend(replication)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()


def test_a_first_copy_that_fails_stands_apart_and_keeps_no_event(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.sql(f"create table e (id int primary key, d date); insert into e values (1, '{BAD}')")
    delta.capture("public.e")
    delta.catch_up()
    ((name, stands, _),) = noted(delta)
    assert name == "public.e"
    insert(delta, 2)
    delta.catch_up()
    assert needed(delta) > stands
    mend(delta, "e")
    end_pauses(delta)
    delta.catch_up()
    assert noted(delta) == []
    delta.check()


def test_a_table_that_is_replicated_no_longer_is_forgotten(delta: DeltaReplication) -> None:
    prepare(delta)
    delta.sql("drop table b")
    insert(delta, 2, "ac")
    delta.catch_up()
    assert len(noted(delta)) == 1
    delta.tables = ["public.a", "public.c"]
    insert(delta, 3, "ac")
    delta.catch_up()
    assert noted(delta) == []
    with delta.connect() as db:
        left = db.execute("select table_name from pgque.replica_table order by 1").fetchall()
    assert left == [("public.a",), ("public.c",)]


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_what_concerns_all_tables_fails_the_run(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(replication)
    insert(replication, 2)
    replication.tick()

    def lose() -> None:
        end_leases(replication)
        with Client(replication.url) as client:
            assert client.claim(QUEUE, CONSUMER, owner="another")

    point = "after begin" if isinstance(replication, DeltaReplication) else "after take"
    Faults(replication, monkeypatch).set(point, 0, lose)
    with pytest.raises(LeaseLost):
        replication.run()
    assert noted(replication) == []

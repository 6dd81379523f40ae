"""A table that fails is set apart, its neighbours go on, and it joins again by itself."""

import pytest

from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas.deletes import HISTORY, SOFT
from pgque_dagster.client.replicas.outcome import Apart
from tests.support.replicas.apart import (
    BAD,
    GOOD,
    insert,
    join,
    mend,
    needed,
    noted,
    prepare,
    rotate,
    spoil,
)
from tests.support.replicas.replication import DeltaReplication, LakeReplication, Replication
from tests.support.servers.logins import as_login


def test_a_table_that_fails_stands_apart_and_joins_again(replication: Replication) -> None:
    prepare(replication)
    stands = replication.last_tick()
    insert(replication, 2)
    spoil(replication, 3)
    *others, apart = replication.catch_up()
    assert [each.spec.source for each in others] == ["public.a", "public.c"]
    assert isinstance(apart, Apart)
    assert (apart.name, apart.tick_id) == ("public.b", stands)
    assert ("infinity" if isinstance(replication, LakeReplication) else "check") in apart.reason
    replication.check("public.a", "public.c")
    assert len(replication.replica("public.b")) == 1
    for number in (4, 5):
        insert(replication, number)
        replication.follow("delete from b where id = 1; update a set d = null where id = 1")
        rotate(replication)
    replication.check("public.a", "public.c")
    assert noted(replication) == [("public.b", stands, 1)], (
        "it is not tried before its pause is over"
    )
    assert needed(replication) == stands
    assert not replication.verify("public.b").is_equal

    insert(replication, 7)
    replication.end_pauses()
    replication.catch_up()
    assert noted(replication) == [("public.b", stands, 2)]

    mend(replication)
    insert(replication, 8, "ac")
    replication.end_pauses()
    replication.catch_up()

    assert noted(replication) == []
    assert needed(replication) > stands
    replication.check()
    assert replication.verify("public.b").is_equal
    assert len([each for each in replication.copied if "copying" in each]) == 3
    insert(replication, 9)
    replication.follow_and_check()


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
    join(replication)
    assert len([each for each in replication.copied if "copying" in each]) == 3
    insert(replication, 6, tables)
    replication.follow_and_check()


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_the_run_fails_if_all_tables_fail_by_more_than_values(replication: Replication) -> None:
    prepare(replication)
    spoil(replication, 3, "a")
    with pytest.raises(InvalidArgument, match=r"no table public\.b"):
        replication.follow("alter table b rename to other; drop table c")
    assert noted(replication) == []


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
    replication.end_pauses()
    replication.catch_up()
    assert [name for name, *_ in noted(replication)] == ["public.b"]
    assert needed(replication) == second[1]
    replication.check("public.a", "public.c")
    replication.sql(f"delete from b where d = '{BAD}'")
    join(replication)


@pytest.mark.parametrize("deletes", [SOFT, pytest.param(HISTORY, marks=pytest.mark.slow)])
def test_what_a_table_missed_is_kept_as_a_batch_would(
    delta: DeltaReplication, deletes: str
) -> None:
    delta.keep(deletes)  # type: ignore[arg-type]
    prepare(delta, "b")
    spoil(delta, 2)
    insert(delta, 4, "b")
    delta.catch_up()
    delta.sql(f"delete from b where id = 1; update b set d = '{GOOD}' where id = 2")
    insert(delta, 3, "b")
    delta.end_pauses()
    delta.catch_up()
    assert noted(delta) == []
    assert {row["id"] for row in delta.replica("public.b")} == {1, 2, 3, 4}
    assert {row["id"] for row in delta.live("public.b")} == {2, 3, 4}
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
    replication.end_pauses()
    replication.url = login
    replication.run()
    replication.url = owner
    replication.check()


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
@pytest.mark.parametrize(
    ("script", "way_out", "reason"),
    [
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
    found = replication.why_apart(
        "do $$ begin insert into other values (3); exception when others then end $$"
    )
    assert reason in found
    replication.check("public.a")
    replication.sql(way_out)
    insert(replication, 4, "ab")
    join(replication)


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
    replication.end_pauses()
    replication.tick()
    if "renew" in script:
        return
    replication.catch_up()
    assert noted(replication) == []
    replication.check()


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_repair_has_it_copied_at_once_and_frees_what_is_kept(replication: Replication) -> None:
    prepare(replication)
    spoil(replication, 2)
    replication.catch_up()
    mend(replication)
    insert(replication, 3)
    stands = noted(replication)[0][1]
    replication.repair("public.b")
    # The last two ticks always stay.
    replication.tick()
    assert needed(replication) > stands
    replication.catch_up()
    assert noted(replication) == []
    replication.check()
    assert replication.verify("public.b").is_equal


def test_a_first_copy_that_fails_stands_apart_and_keeps_no_event(delta: DeltaReplication) -> None:
    prepare(delta, "a")
    delta.begin(
        f"create table e (id int primary key, d date); insert into e values (1, '{BAD}')",
        "public.e",
    )
    ((name, stands, _),) = noted(delta)
    assert name == "public.e"
    insert(delta, 2, "a")
    delta.catch_up()
    assert needed(delta) > stands
    mend(delta, "e")
    join(delta)


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_table_that_is_replicated_no_longer_is_forgotten(replication: Replication) -> None:
    prepare(replication)
    replication.sql("drop table b")
    insert(replication, 2, "ac")
    replication.catch_up()
    assert len(noted(replication)) == 1
    replication.tables = ["public.a", "public.c"]
    insert(replication, 3, "ac")
    replication.catch_up()
    assert noted(replication) == []
    with replication.connect() as db:
        left = db.execute("select table_name from pgque.replica_table order by 1").fetchall()
    assert left == [("public.a",), ("public.c",)]

"""Tables that are added, taken out, renamed, dropped or misspelled, while the others go on."""

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.outcome import Apart, Replicated
from pgque_dagster.client.replicas.status import name_replicas
from tests.support.replicas.apart import noted
from tests.support.replicas.replication import CONSUMER, QUEUE, Replication

OTHERS = ["public.a", "public.c"]


@pytest.fixture
def three(replication: Replication) -> Replication:
    """Three tables that were copied."""
    for table in "abc":
        replication.sql(f"create table {table} (id int primary key)")
    insert(replication, 1)
    replication.capture("public.a", "public.b", "public.c")
    replication.catch_up()
    replication.copied.clear()
    return replication


def insert(replication: Replication, number: int, tables: str = "abc") -> None:
    for table in tables:
        replication.sql(f"insert into {table} values ({number})")


def test_a_table_that_is_taken_out_holds_up_nothing_and_is_copied_when_it_is_put_back(
    three: Replication,
) -> None:
    three.tables = [*OTHERS]
    insert(three, 2)
    three.follow_and_check()
    assert len(three.replica("public.b")) == 1, "its replica stays"
    assert [each for each in three.copied if "changes of public.b are skipped" in each]
    assert not [each for each in three.copied if each.startswith("copying")]
    three.tables = ["public.a", "public.b", "public.c"]
    insert(three, 3, "a")
    three.follow_and_check()
    assert [each for each in three.copied if each.startswith("copying public.b")]


def test_a_table_that_is_taken_out_and_put_back_within_one_batch_lacks_nothing(
    three: Replication,
) -> None:
    insert(three, 2)
    with Client(three.url) as client:
        for tables in (OTHERS, [*OTHERS, "public.b"]):
            client.run(name_replicas(QUEUE, CONSUMER, tables))
    insert(three, 3)
    three.follow_and_check()
    assert three.verify("public.b").is_equal


def test_a_table_that_stands_apart_and_is_taken_out_keeps_no_events(three: Replication) -> None:
    three.sql("alter table b rename to other")
    insert(three, 2, "ac")
    three.catch_up()
    assert [name for name, *_ in noted(three)] == ["public.b"]
    three.tables = [*OTHERS]
    insert(three, 3, "ac")
    three.catch_up()
    assert noted(three) == []
    three.check()


def test_a_partitioned_table_that_is_taken_out_is_put_back(three: Replication) -> None:
    three.begin(
        "create table p (id int primary key) partition by range (id);"
        "create table p1 partition of p default; insert into p values (1)",
        "public.p",
    )
    three.check()
    three.tables = [*OTHERS]
    three.sql("select pgque.uncapture('p', 'changes'); insert into p1 values (2)")
    insert(three, 2, "ac")
    three.follow_and_check()
    three.tables = [*OTHERS]
    three.capture("public.p")
    three.follow_and_check("insert into p values (3)")


def test_a_table_that_is_added_is_copied_while_the_others_go_on(three: Replication) -> None:
    three.sql("create table d (id int primary key); insert into d values (1)")
    insert(three, 2)
    three.tick()
    three.capture("public.d")
    insert(three, 3)
    three.run()
    three.check("public.d")
    three.follow_and_check()
    told = [each for each in three.copied if each.startswith("copying")]
    assert told and all(each.startswith("copying public.d") for each in told)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("create schema s; alter table b set schema s", "no table public.b"),
        ("alter table b drop constraint b_pkey", "has no key"),
    ],
)
def test_a_table_that_is_gone_stops_alone(three: Replication, script: str, reason: str) -> None:
    insert(three, 2)
    three.sql(script)
    insert(three, 3, "ac")
    *others, apart = three.catch_up()
    assert [each.spec.source for each in others] == OTHERS
    assert all(isinstance(each, Replicated) for each in others)
    assert isinstance(apart, Apart)
    assert reason in apart.reason
    insert(three, 4, "ac")
    three.end_pauses()
    three.catch_up()
    three.check(*OTHERS)


def test_a_misspelled_name_stops_alone_and_is_corrected(three: Replication) -> None:
    three.tables = [*OTHERS, "public.bb"]
    insert(three, 2)
    *others, apart = three.catch_up()
    assert [each.spec.source for each in others] == OTHERS
    assert isinstance(apart, Apart)
    assert "has no table public.bb" in apart.reason
    assert "correct its name" in apart.reason
    three.tables = [*OTHERS, "public.b"]
    insert(three, 3)
    three.follow_and_check()
    assert noted(three) == []

"""Several targets of one capture: each a consumer of the same queue, with its own position."""

import random

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.capture import copy_again, request_copy
from pgque_dagster.client.replicas.status import name_replicas
from tests.client.consumer.support import expire_leases
from tests.support.replicas.faults import Faults, Killed
from tests.support.replicas.replication import (
    QUEUE,
    DeltaReplication,
    IcebergReplication,
    PostgresReplication,
    Replication,
)

ROUNDS = 3
CHANGES = (
    "insert into t select g, 'new' from generate_series({n}, {n} + 20) g;"
    "update t set v = 'changed {n}' where id % 3 = 0; delete from t where id % 7 = {n} % 7"
)
TRIGGERS = "select count(*) from pg_trigger where tgrelid = 't'::regclass and not tgisinternal"


def share(*replications: Replication) -> None:
    """Gives each a consumer of its own, and has them replicate the same table."""
    for number, each in enumerate(replications):
        each.consumer = f"target {number}"
        each.sql(f"select pgque.register_consumer('changes', '{each.consumer}')")
        named(each, "public.t")
        each.capture("public.t")


def named(replication: Replication, *tables: str) -> None:
    """Notes the tables of a consumer, as the sensor that captures does."""
    with Client(replication.url) as client:
        client.run(name_replicas(QUEUE, replication.consumer, tables))


@pytest.mark.slow
def test_three_targets_of_one_capture_are_each_exact_under_kills(
    delta: DeltaReplication,
    iceberg: IcebergReplication,
    postgres: PostgresReplication,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    targets: tuple[Replication, ...] = (delta, iceberg, postgres)
    delta.sql("create table t (id int primary key, v text); insert into t values (0, 'old')")
    delta.sql("select pgque.capture('t', 'changes')")
    with delta.connect() as db:
        triggers = db.execute(TRIGGERS).fetchall()
    share(*targets)
    chance, kills = random.Random(7), 0
    faults = {each.consumer: Faults(each, monkeypatch) for each in targets}

    def die() -> None:
        raise Killed

    for number in range(1, ROUNDS + 1):
        delta.sql(CHANGES.format(n=number * 100))
        delta.tick()
        for each in targets:
            fault = faults[each.consumer]
            fault.set(chance.choice(fault.points), 0, die)
            try:
                each.run()
            except Killed:
                kills += 1
            fault.clear()
            with each.connect() as db:
                expire_leases(db)
    for each in targets:
        each.catch_up()
        each.check()
        assert each.verify().is_equal, each
        assert len(set(each.copied)) <= 1, "only the first batch copies"
    assert kills > ROUNDS
    with delta.connect() as db:
        assert db.execute(TRIGGERS).fetchall() == triggers


@pytest.mark.parametrize(
    "kind", [pytest.param("delta", marks=pytest.mark.slow), "iceberg", "postgres"]
)
def test_a_repair_of_one_target_copies_no_other(
    kind: str,
    postgres: PostgresReplication,
    request: pytest.FixtureRequest,
    delta: DeltaReplication,
) -> None:
    first: Replication = request.getfixturevalue(kind)
    second: Replication = delta if kind == "postgres" else postgres
    first.sql("create table t (id int primary key, v text); insert into t values (0, 'old')")
    share(first, second)
    for each in (first, second):
        each.catch_up()
        assert len(each.copied) == 1
    with Client(first.url) as client:
        copy_again(client, QUEUE, first.consumer, "public.t")
    first.sql("update t set v = 'new'")
    for each in (first, second):
        each.tick()
        assert each.verify().is_equal == (each is second)
        each.catch_up()
        each.check()
    assert (len(first.copied), len(second.copied)) == (2, 1)
    with Client(first.url) as client:
        request_copy(client, QUEUE, "public.t")
    for each in (first, second):
        each.catch_up()
    assert (len(first.copied), len(second.copied)) == (3, 2), "a request for all reaches all"


def test_the_capture_of_a_table_into_another_queue_has_no_replica_copied(
    postgres: PostgresReplication,
) -> None:
    postgres.sql("create table t (id int primary key, v text)")
    postgres.capture("public.t")
    postgres.catch_up()
    postgres.sql("select pgque.create_queue('other'); select pgque.capture('t', 'other')")
    postgres.sql("insert into t values (1, 'a')")
    postgres.catch_up()
    postgres.sql("select pgque.uncapture('t', 'other'); insert into t values (2, 'b')")
    postgres.catch_up()
    postgres.check()
    assert len(postgres.copied) == 1


def test_a_table_of_another_target_is_passed_over_and_copied_when_it_comes_back(
    postgres: PostgresReplication, delta: DeltaReplication
) -> None:
    postgres.sql("create table t (id int primary key); create table u (id int primary key)")
    share(postgres, delta)
    named(postgres, "public.t", "public.u")
    postgres.capture("public.u")
    postgres.sql("insert into u values (1)")
    postgres.catch_up()
    delta.catch_up()
    delta.check()
    assert not [each for each in delta.copied if "are skipped" in each], "another target has it"

    postgres.tables.remove("public.u")
    named(postgres, "public.t")
    named(delta, "public.t", "public.u")
    delta.tables.append("public.u")
    postgres.sql("insert into u values (2)")
    for each in (postgres, delta):
        each.catch_up()
    delta.check()
    postgres.tables.append("public.u")
    postgres.sql("insert into t values (2)")
    postgres.catch_up()
    postgres.check()


def test_uncapture_says_who_replicates_the_table(
    postgres: PostgresReplication, delta: DeltaReplication
) -> None:
    postgres.sql("create table t (id int primary key)")
    share(postgres, delta)
    with postgres.connect() as db:
        told: list[str] = []
        db.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
        db.execute("select pgque.uncapture('t', 'changes')")
        db.execute("select pgque.uncapture('t', 'changes')")
    (warning,) = told
    assert "public.t is replicated by consumers" in warning
    assert warning.endswith("target 0, target 1")

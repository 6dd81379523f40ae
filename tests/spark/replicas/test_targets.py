"""Several targets of one capture: each a consumer of the same queue, with its own position."""

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas.capture import request_copy
from pgque_dagster.client.replicas.status import name_replicas
from tests.support.replicas.replication import (
    QUEUE,
    DeltaReplication,
    PostgresReplication,
    Replication,
)


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
    first.repair()
    first.sql("update t set v = 'new'")
    for each in (first, second):
        each.tick()
        assert each.verify().is_equal == (each is second)
        each.follow_and_check()
    assert (len(first.copied), len(second.copied)) == (2, 1)
    with Client(first.url) as client:
        request_copy(client, QUEUE, "public.t")
    for each in (first, second):
        each.catch_up()
    assert (len(first.copied), len(second.copied)) == (3, 2), "a request for all reaches all"
    assert "it was requested" in first.copied[-1]


def test_the_capture_of_a_table_into_another_queue_has_no_replica_copied(
    postgres: PostgresReplication,
) -> None:
    postgres.begin("create table t (id int primary key, v text)")
    postgres.sql("select pgque.create_queue('other'); select pgque.capture('t', 'other')")
    postgres.follow("insert into t values (1, 'a')")
    postgres.follow_and_check("select pgque.uncapture('t', 'other'); insert into t values (2, 'b')")
    assert len(postgres.copied) == 1


def test_a_table_of_another_target_is_passed_over_and_copied_when_it_comes_back(
    postgres: PostgresReplication, delta: DeltaReplication
) -> None:
    postgres.sql("create table t (id int primary key); create table u (id int primary key)")
    share(postgres, delta)
    named(postgres, "public.t", "public.u")
    postgres.capture("public.u")
    postgres.follow("insert into u values (1)")
    delta.follow_and_check()
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
    postgres.follow_and_check("insert into t values (2)")


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

"""Attempts that are killed, stale or repeated: each change counts once.

So does one of a table that stands apart, also in a database that is restored from a dump.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Client, LeaseLost
from pgque_dagster.client.errors import InvalidArgument, TargetOutOfStep
from pgque_dagster.client.replicas.spec import TableSpec
from tests.programs.signals import signalled
from tests.support.replicas.apart import insert, join, mend, noted, prepare, prepare_batch, spoil
from tests.support.replicas.faults import Faults, Killed, die
from tests.support.replicas.replication import (
    CONSUMER,
    QUEUE,
    DeltaReplication,
    PostgresReplication,
    Replication,
    adopt,
)
from tests.support.servers.databases import empty_database
from tests.support.servers.dumps import dump, restore


def killed_at(replication: Replication, point: str, log: Path) -> AbstractContextManager[object]:
    """Has another process apply the next batch, and kill itself at a point, by SIGKILL."""
    if isinstance(replication, DeltaReplication):
        kind, place = "delta", str(replication.folder)
    else:
        assert isinstance(replication, PostgresReplication)
        kind, place = "postgres", str(replication.target.url)
    tables = ",".join(TableSpec.of(each).source for each in replication.tables)
    return signalled("replicating", kind, replication.url, place, point, tables, log=log)


def prepare_changes(replication: Replication) -> None:
    """Copies a table, and has a batch of its changes ready."""
    replication.begin("create table t (id int primary key, v int); insert into t values (1, 1)")
    replication.sql("update t set v = 2; insert into t values (2, 2)")
    replication.tick()


@pytest.mark.parametrize(
    ("replication", "point"),
    [("delta", "after commit"), ("postgres", "after record")],
    indirect=["replication"],
)
def test_a_process_that_is_killed_loses_and_repeats_nothing(
    replication: Replication, tmp_path: Path, point: str
) -> None:
    prepare_changes(replication)
    with killed_at(replication, point, tmp_path / "log"):
        replication.end_leases()
        replication.run()

    replication.check()


@pytest.mark.in_the_lake
@pytest.mark.parametrize(
    ("replication", "point"),
    [("delta", "after begin"), ("iceberg", "after begin"), ("postgres", "after record")],
    indirect=["replication"],
)
def test_an_attempt_that_lost_its_batch_fails_and_publishes_nothing(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    prepare(replication)
    before = replication.replica("public.a")
    insert(replication, 2)

    def lose() -> None:
        replication.end_leases()
        with Client(replication.url) as client:
            assert client.claim(QUEUE, CONSUMER, owner="another")

    Faults(replication, monkeypatch).set(point, 0, lose)
    with pytest.raises(LeaseLost):
        replication.catch_up()
    assert replication.replica("public.a") == before
    assert noted(replication) == []


def test_a_new_target_is_said_to_have_no_copy(
    delta: DeltaReplication, spark: SparkSession, tmp_path: Path
) -> None:
    prepare_changes(delta)
    other = DeltaReplication(delta.url, spark, tmp_path / "other")
    other.tables = delta.tables

    (done,) = other.run()

    assert done.reason == "the target has no copy of it"


POINTS = {
    "delta": ("after commit", "before ack"),
    "iceberg": ("after commit",),
    "postgres": ("after record", "before ack"),
}


@pytest.mark.parametrize(
    ("replication", "point"),
    [(kind, point) for kind, points in POINTS.items() for point in points],
    indirect=["replication"],
)
@pytest.mark.parametrize("joins", [pytest.param(False, marks=pytest.mark.slow), True])
def test_killed_at_parting_and_at_joining(
    replication: Replication, monkeypatch: pytest.MonkeyPatch, point: str, joins: bool
) -> None:
    prepare_batch(replication, joins)
    faults = Faults(replication, monkeypatch)

    # The second commit of a lake's run is that of b when it joins, and that of c when it does not.
    faults.set(point, int("commit" in point), die)
    with pytest.raises(Killed):
        replication.run()
    assert faults.has_fired
    replication.end_leases()
    insert(replication, 5)
    replication.catch_up()
    replication.check("public.a", "public.c")
    mend(replication)
    join(replication)
    insert(replication, 6)
    replication.follow_and_check()
    assert len([each for each in replication.copied if "copying" in each]) == 3


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_table_that_has_the_batch_and_fails_at_the_next_attempt_adds_no_row_twice(
    replication: Replication,
) -> None:
    replication.begin(
        "create table l (id int, d date); create table a (id int primary key)",
        TableSpec("public.l", mode="append"),
        "public.a",
    )
    replication.sql("insert into l values (1); insert into a values (1)")
    replication.tick()
    replication.run(ack=False)
    replication.sql("alter table l rename to other; insert into a values (2)")
    replication.run()
    assert [name for name, *_ in noted(replication)] == ["public.l"]
    replication.follow("insert into other values (2); insert into a values (3)")
    replication.sql("alter table other rename to l; insert into l values (3)")
    replication.end_pauses()
    replication.tick()
    replication.run(ack=False)
    replication.end_pauses()
    replication.run()
    assert noted(replication) == []
    replication.check()
    replication.follow_and_check("insert into l values (4)")


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_stale_run_parts_and_joins_nothing(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(replication)
    spoil(replication, 2)
    insert(replication, 3)
    replication.tick()

    def others_go_on() -> None:
        replication.end_leases()
        mend(replication)
        replication.run()
        insert(replication, 4)
        replication.catch_up()

    Faults(replication, monkeypatch).set("before ack", 0, others_go_on)
    with pytest.raises(Exception, match="batch"):
        replication.run()
    insert(replication, 5)
    join(replication)


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_repair_that_is_asked_for_during_an_attempt_waits_for_no_pause(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(replication)
    spoil(replication, 2)
    replication.catch_up()
    insert(replication, 3)
    replication.end_pauses()
    replication.tick()
    faults = Faults(replication, monkeypatch)
    faults.set("before ack", 0, lambda: replication.repair("public.b"))
    replication.run()
    assert faults.has_fired
    assert noted(replication) != []
    mend(replication)
    replication.catch_up()
    assert noted(replication) == []
    replication.check()


@pytest.mark.slow
@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
@pytest.mark.parametrize("joins", [False, True])
def test_a_process_that_is_killed_at_parting_or_joining_loses_and_repeats_nothing(
    replication: Replication, tmp_path: Path, joins: bool
) -> None:
    prepare_batch(replication, joins)
    before = noted(replication)
    with killed_at(replication, "before ack", tmp_path / "log"):
        assert noted(replication) == before, "only an ack notes"
    replication.end_leases()
    insert(replication, 5)
    replication.catch_up()
    replication.check("public.a", "public.c")
    mend(replication)
    insert(replication, 6)
    join(replication)
    assert replication.verify("public.b").is_equal
    assert len([each for each in replication.copied if "copying" in each]) == 3, "the first ones"


@pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)
def test_a_table_that_stands_apart_in_a_dump_is_exact_after_it_is_restored(
    replication: Replication, server: Any, tmp_path: Path
) -> None:
    prepare(replication)
    spoil(replication, 2)
    insert(replication, 3)
    replication.catch_up()
    dump(server, replication.url, tmp_path / "dump")
    # What only the replicas have afterwards.
    insert(replication, 4)
    mend(replication)
    replication.end_pauses()
    replication.catch_up()
    with empty_database(server) as url:
        restore(server, tmp_path / "dump", url)
        replication.url = url
        replication.sql("select pgque.adopt_restored_database()")
        assert [name for name, *_ in noted(replication)] == ["public.b"]
        insert(replication, 5)
        with pytest.raises((InvalidArgument, TargetOutOfStep), match="incarnation") as refused:
            replication.catch_up()
        adopt(replication, str(refused.value))
        mend(replication)
        join(replication)
        insert(replication, 6)
        replication.follow_and_check()
        assert replication.verify("public.b").is_equal

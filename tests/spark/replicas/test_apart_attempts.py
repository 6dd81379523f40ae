"""Attempts that are killed, stale or repeated part and join tables once."""

import pytest

from pgque_dagster.client import Client, LeaseLost
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.apart import (
    end_leases,
    end_pauses,
    insert,
    mend,
    noted,
    prepare,
    prepare_batch,
    repair,
    spoil,
)
from tests.support.replicas.faults import Faults, Killed
from tests.support.replicas.replication import (
    CONSUMER,
    QUEUE,
    DeltaReplication,
    Replication,
)

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
@pytest.mark.parametrize("joins", [pytest.param(False, marks=pytest.mark.slow), True])
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

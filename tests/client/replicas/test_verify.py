"""A comparison is recorded whatever becomes of it, and its record belongs to its table."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import count

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas import parts
from pgque_dagster.client.replicas.key_parts import KeyPart
from pgque_dagster.client.replicas.status import ReplicaStatus
from pgque_dagster.client.replicas.verify import REPLICA_GONE, Verification, compare_and_record
from tests.support.queues.sql import connect

HOUR = timedelta(hours=1)


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """A consumer that has copied a table whose name is in quotes, with the batch of tick 5."""
    with connect(database_url) as db:
        db.execute('create table "Big One" (id int primary key)')
    with Client(database_url) as client:
        client.create_queue("shop")
        client.register_consumer("shop", "shop")
        copied(client, 5)
        yield client


def copied(client: Client, tick_id: int) -> None:
    """Records a copy of the table with the batch of a tick."""
    tables = [{"table_name": 'public."Big One"', "is_stored": True, "is_copied": True}]
    note = "select pgque.note_replicas('shop', 'shop', %s, %s::jsonb)"
    with client.transaction() as connection:
        connection.execute(note, (tick_id, json.dumps(tables)))


def status(client: Client) -> ReplicaStatus:
    (found,) = client.replicas("shop")
    return found


def compared(client: Client, found: Verification, timeout: timedelta = HOUR) -> Verification:
    table = 'public."Big One"'
    return compare_and_record(client, "shop", "shop", table, lambda part: found, timeout)


def test_what_is_found_is_recorded_with_the_copy_that_was_there(client: Client) -> None:
    compared(client, Verification("", 7, None, rows=3))
    found = status(client)
    assert (found.verified_tick, found.verified_problem, found.rows) == (7, None, 3)
    assert (found.tried_copy, found.copied_tick) == (5, 5)
    assert found.verdict.startswith("equal at tick 7, ")

    # It has no tick of its own.
    compared(client, Verification("", 6, None, why_not=REPLICA_GONE))
    found = status(client)
    assert (found.verified_tick, found.verified_problem) == (7, REPLICA_GONE)


@pytest.mark.parametrize("error", [ValueError("a lock\nand more"), TimeoutError("a lock")])
def test_an_error_is_recorded_and_raised(client: Client, error: Exception) -> None:
    def fail(part: KeyPart | None) -> Verification:
        raise error

    with pytest.raises(type(error), match="a lock"):
        compare_and_record(client, "shop", "shop", 'public."Big One"', fail, HOUR)

    found = status(client)
    assert (found.unverified, found.verified_tick) == ("a lock", None)
    assert found.verdict.endswith("the last attempt compared nothing: a lock")


def test_a_table_that_is_gone_keeps_its_record(client: Client) -> None:
    with client.transaction() as connection:
        connection.execute('drop table "Big One"')
    compared(client, Verification("", None, None, why_not="it is gone"))
    assert status(client).unverified == "it is gone"


def test_one_that_takes_too_long_is_left_alone(client: Client) -> None:
    end = threading.Event()

    def wait(part: KeyPart | None) -> Verification:
        end.wait()
        return Verification("", 9, None)

    soon = timedelta(milliseconds=10)
    found = compare_and_record(client, "shop", "shop", 'public."Big One"', wait, soon)
    end.set()
    assert "it took longer than" in str(found.why_not)
    assert status(client).unverified == found.why_not


def test_the_oldest_part_comes_first_and_a_killed_comparison_of_all_continues(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, seen, log = count(6), list[int | None](), list[str]()

    def compare(*, whole: bool, killed: int = 0) -> list[int | None]:
        def found(part: KeyPart | None) -> Verification:
            seen.append(part and part.number)
            if part and part.number == killed:
                raise KeyboardInterrupt
            return Verification("", next(ticks), None, rows=10)

        table = 'public."Big One"'
        arguments = (client, "shop", "shop", table, found, HOUR)
        seen.clear()
        compare_and_record(*arguments, share=0.3, whole=whole, log=log.append)
        return list(seen)

    assert compare(whole=False) == [None], "it is small"
    monkeypatch.setattr(parts, "WHOLE_BYTES", -1)
    assert [compare(whole=False) for _ in range(3)] == [[1], [2], [3]]
    assert (status(client).verified_tick, status(client).is_partial) == (6, True)
    assert [compare(whole=False) for _ in range(2)] == [[4], [1]]
    assert (status(client).verified_tick, status(client).is_partial) == (8, False)
    told = "4 of 4 parts were compared since the last copy, part 2 least recently, at tick 8, "
    assert told in status(client).verdict

    with pytest.raises(KeyboardInterrupt):
        compare(whole=True, killed=3)
    assert seen == [2, 3]
    assert compare(whole=False) == [3]
    assert compare(whole=True) == [4, 1]
    assert "part 4 of 4: 0 of 10 rows differ at tick 14; 1 parts are left" in log[-2]
    assert compare(whole=True) == [2, 3, 4, 1]

    copied(client, 20)
    assert status(client).is_partial, "none was compared since the last copy"
    assert status(client).verdict.endswith("0 of 4 parts were compared since the last copy")
    assert [compare(whole=False) for _ in range(4)] == [[1], [2], [3], [4]]
    assert not status(client).is_partial

"""A comparison is recorded whatever becomes of it, and its record belongs to its table."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replica_status import ReplicaStatus
from pgque_dagster.client.replicas.recording import compare_and_record
from pgque_dagster.client.replicas.verification import REPLICA_GONE, Verification
from tests.support.queues import connect

HOUR = timedelta(hours=1)


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """A consumer that has copied a table whose name is in quotes, with the batch of tick 5."""
    with connect(database_url) as db:
        db.execute('create table "Big One" (id int primary key)')
    with Client(database_url) as client, client.transaction() as connection:
        client.create_queue("shop")
        client.register_consumer("shop", "shop")
        tables = [{"table_name": 'public."Big One"', "is_stored": True, "is_copied": True}]
        note = "select pgque.note_replicas('shop', 'shop', 5, %s::jsonb)"
        connection.execute(note, (json.dumps(tables),))
    with Client(database_url) as client:
        yield client


def status(client: Client) -> ReplicaStatus:
    (found,) = client.replicas("shop")
    return found


def compared(client: Client, found: Verification, timeout: timedelta = HOUR) -> Verification:
    table = 'public."Big One"'
    return compare_and_record(client, "shop", "shop", table, lambda: found, timeout)


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
    def fail() -> Verification:
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

    def wait() -> Verification:
        end.wait()
        return Verification("", 9, None)

    soon = timedelta(milliseconds=10)
    found = compare_and_record(client, "shop", "shop", 'public."Big One"', wait, soon)
    end.set()
    assert "it took longer than" in str(found.why_not)
    assert status(client).unverified == found.why_not

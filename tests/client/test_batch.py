"""A claimed batch: read, judged, acked, in one transaction with its results."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pgque_dagster.client import (
    AckResult,
    Batch,
    BatchNotOpen,
    Client,
    EventNotInBatch,
    InvalidArgument,
    LeaseLost,
    Limits,
)
from pgque_dagster.client.batch import read_plan
from tests.support.queues import Connection, connect, drain, make_queue, rows, send, tick, value


@pytest.fixture
def batch(client: Client, db: Connection) -> Batch:
    """A batch of the events a, b and c."""
    make_queue(db)
    send(db, "a", "b", "c")
    tick(db)
    claimed = client.claim("q", "c", owner="me")
    assert claimed is not None
    return claimed


def left_behind(db: Connection) -> tuple[list[str], list[str]]:
    """The payloads that wait for a retry, and those that are dead letters."""
    retries = rows(db, "select ev_data from pgque.retry_queue order by ev_id")
    dead = rows(db, "select ev_data from pgque.dead_letter order by ev_id")
    return [text for (text,) in retries], [text for (text,) in dead]


def test_without_a_batch_there_is_no_claim(client: Client, db: Connection) -> None:
    make_queue(db)
    assert client.claim("q", "c", owner="me") is None


def test_a_claim_respects_limits(client: Client, db: Connection) -> None:
    make_queue(db)
    tick(db)
    assert client.claim("q", "c", owner="me", limits=Limits(min_count=1)) is None


def test_a_batch_gives_its_events(batch: Batch) -> None:
    assert [event.payload for event in batch.events()] == ["a", "b", "c"]


def test_an_ack_finishes_the_batch(batch: Batch, client: Client) -> None:
    batch.ack()
    assert client.next_batch("q", "c") is None


def test_a_second_ack_is_refused(batch: Batch) -> None:
    batch.ack()
    with pytest.raises(BatchNotOpen):
        batch.ack()


def test_a_released_batch_is_claimed_by_the_next(batch: Batch, client: Client) -> None:
    batch.release()
    again = client.claim("q", "c", owner="next")
    assert again is not None and again.batch_id == batch.batch_id


def test_a_lease_is_renewed_by_its_holder_alone(batch: Batch, client: Client) -> None:
    batch.renew()
    renewed = client.lease_info("q", "c")
    client.claim("q", "c", owner="me")

    assert renewed is not None and renewed.until is not None
    assert renewed.until > batch.lease.until
    with pytest.raises(LeaseLost):
        batch.renew()


def test_failures_take_effect_with_the_ack(batch: Batch, db: Connection) -> None:
    first, second, _ = (event.msg_id for event in batch.events())
    batch.nack([first])
    batch.dead_letter([second], reason="bad")
    result = batch.ack()
    assert (result, left_behind(db)) == (AckResult(nacked=1, dead_lettered=1), (["a"], ["b"]))


def test_each_failure_has_its_reason(batch: Batch, client: Client) -> None:
    ids = [event.msg_id for event in batch.events()]
    batch.dead_letter(ids[1:], reason=["of b", None])
    batch.ack()
    found = sorted((letter.event_id, letter.reason) for letter in client.dead_letters("q"))
    assert found == [(ids[1], "of b"), (ids[2], None)]


@pytest.mark.parametrize("ids", [[None], ["1"], [1.5], [2**63]])
def test_an_id_that_is_no_number_is_refused_at_once(batch: Batch, ids: list[Any]) -> None:
    with pytest.raises(InvalidArgument, match="is an integer"):
        batch.nack(ids)
    assert batch.ack() == AckResult(nacked=0, dead_lettered=0)


def test_fewer_reasons_than_failures_are_refused_at_once(batch: Batch) -> None:
    with pytest.raises(InvalidArgument, match="2 reasons for 3 events"):
        batch.nack([1, 2, 3], reason=["x", "y"])
    assert batch.ack() == AckResult(nacked=0, dead_lettered=0)


def test_before_the_ack_failures_leave_nothing(batch: Batch, db: Connection) -> None:
    first, second, _ = (event.msg_id for event in batch.events())
    batch.nack([first])
    batch.dead_letter([second], reason="bad")
    assert left_behind(db) == ([], [])


def test_a_session_killed_before_the_ack_leaves_nothing(
    batch: Batch, client: Client, db: Connection
) -> None:
    first, second, _ = (event.msg_id for event in batch.events())
    batch.nack([first])
    batch.dead_letter([second], reason="bad")
    value(
        db,
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()",
    )
    with pytest.raises(Exception, match=r"terminat|closed|connection"):
        batch.ack()
    assert (left_behind(db), value(db, "select sub_batch from pgque.subscription")) == (
        ([], []),
        batch.batch_id,
    )


def test_a_zombies_failures_leave_nothing(batch: Batch, client: Client, db: Connection) -> None:
    batch.nack([batch.events()[0].msg_id])
    client.claim("q", "c", owner="me")
    with pytest.raises(LeaseLost):
        batch.ack()
    assert left_behind(db) == ([], [])


def test_a_wrong_id_refuses_the_ack_as_a_whole(batch: Batch, db: Connection) -> None:
    batch.dead_letter([batch.events()[0].msg_id], reason="bad")
    batch.nack([4711])
    with pytest.raises(EventNotInBatch):
        batch.ack()
    assert left_behind(db) == ([], [])


def test_results_and_ack_are_committed_together(
    batch: Batch, client: Client, db: Connection
) -> None:
    db.execute("create table result (n int)")
    with client.transaction() as connection:
        connection.execute("insert into result values (1)")
        batch.ack()
    assert (rows(db, "select n from result"), client.next_batch("q", "c")) == ([(1,)], None)


def test_results_and_ack_are_rolled_back_together(
    batch: Batch, client: Client, db: Connection
) -> None:
    db.execute("create table result (n int)")
    batch.nack([batch.events()[0].msg_id])
    with pytest.raises(ZeroDivisionError), client.transaction() as connection:
        connection.execute("insert into result values (1)")
        batch.ack()
        raise ZeroDivisionError
    assert rows(db, "select n from result") == []
    assert left_behind(db) == ([], [])
    assert value(db, "select sub_batch from pgque.subscription") == batch.batch_id


def test_results_of_a_zombie_are_rolled_back(batch: Batch, client: Client, db: Connection) -> None:
    db.execute("create table result (n int)")
    with connect(client.url) as other:
        value(other, "select batch_id from pgque.claim_batch('q', 'c', 'me')")
    with pytest.raises(LeaseLost), client.transaction() as connection:
        connection.execute("insert into result values (1)")
        batch.ack()
    assert rows(db, "select n from result") == []


@pytest.mark.parametrize("commits", [False, True])
def test_a_step_of_the_ack_cannot_commit_by_itself(
    batch: Batch, client: Client, db: Connection, commits: bool
) -> None:
    """A block of `transaction()` in it is a savepoint, and `commit()` is refused."""
    db.execute("create table result (n int)")

    def step(connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            connection.execute("insert into result values (1)")
        if commits:
            connection.commit()
        raise ZeroDivisionError

    batch.before_ack(step)
    with pytest.raises((ZeroDivisionError, psycopg.ProgrammingError)) as refused:
        batch.ack()
    assert isinstance(refused.value, psycopg.ProgrammingError) == commits
    assert rows(db, "select n from result") == []
    assert value(db, "select sub_batch from pgque.subscription") == batch.batch_id


def test_an_error_of_the_callers_own_statement_comes_out_as_it_is(client: Client) -> None:
    with pytest.raises(psycopg.errors.UndefinedFunction), client.transaction() as connection:
        connection.execute("select no_such_function()")


def test_after_a_rolled_back_transaction_the_client_goes_on(client: Client, db: Connection) -> None:
    make_queue(db)
    with pytest.raises(psycopg.Error), client.transaction() as connection:
        client.send("q", "ghost")
        connection.execute("select 1 / 0")
    client.send("q", "real")
    tick(db)
    assert drain(db) == ["real"]


def test_a_read_plan_gives_the_events(batch: Batch, db: Connection) -> None:
    plan = read_plan(batch, 3)
    read = [row[5] for each in plan.slices for row in rows(db, each.sql)]
    assert (sorted(read), plan.events) == (["a", "b", "c"], 3)


def test_lease_info_names_the_owner(batch: Batch, client: Client) -> None:
    info = client.lease_info("q", "c")
    assert info is not None and (info.owner, info.is_live) == ("me", True)


def test_dead_letters_are_counted_replayed_and_purged(
    batch: Batch, client: Client, db: Connection
) -> None:
    ids = [event.msg_id for event in batch.events()]
    batch.dead_letter(ids, reason="bad")
    batch.ack()
    (count,) = client.dead_letter_counts("q")
    newest = client.dead_letters("q", limit=1)[0]
    client.replay_dead_letter(newest.id)
    purged = client.purge_dead_letters("q", timedelta(0))
    tick(db)
    assert (count.consumer, count.reason, count.count, purged) == ("c", "bad", 3, 2)
    assert drain(db) == [newest.payload]

"""Leases under concurrency: whatever two sessions do at once, one of them holds the batch."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Semaphore

import psycopg
import pytest

from tests.support.queues import (
    Connection,
    finish,
    make_queue,
    next_batch,
    refused,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)

Another = Callable[[], Connection]


@pytest.fixture
def queue(db: Connection) -> Connection:
    make_queue(db)
    send(db, "a")
    tick(db)
    return db


def claim(db: Connection, owner: str, ttl: str = "1 minute") -> tuple[int, str, int]:
    ((batch, epoch),) = rows(
        db, "select batch_id, epoch from pgque.claim_batch('q', 'c', %s, %s)", owner, ttl
    )
    return batch, owner, epoch


def test_of_many_claims_at_once_exactly_one_wins(queue: Connection, another: Another) -> None:
    sessions = [another() for _ in range(8)]
    start = Barrier(len(sessions))

    def try_to_claim(number: int) -> bool:
        start.wait()
        try:
            claim(sessions[number], f"worker {number}")
        except psycopg.Error as error:
            assert error.sqlstate == "PQ004"
            return False
        return True

    with ThreadPoolExecutor(len(sessions)) as pool:
        won = list(pool.map(try_to_claim, range(len(sessions))))
    assert won.count(True) == 1


def test_a_claim_that_waited_for_anothers_is_refused(
    queue: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    rival = another()
    with queue.transaction():
        claim(queue, "holder")
        answer = background.submit(claim, rival, "rival")
        wait_until_blocked(another(), rival)
    with refused("PQ004", '"holder"'):
        answer.result()


def test_of_an_ack_and_a_take_over_at_once_the_ack_wins_if_first(
    queue: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    zombie = claim(queue, "zombie", "1 millisecond")
    value(queue, "select pg_sleep(0.01)::text")
    heir = another()
    with queue.transaction():
        value(queue, "select pgque.ack_batch(%s, %s, %s)", *zombie)
        answer = background.submit(claim, heir, "heir")
        wait_until_blocked(another(), heir)
    assert answer.result()[0] is None


def test_of_a_take_over_and_an_ack_at_once_the_take_over_wins_if_first(
    queue: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    zombie = claim(queue, "zombie", "1 millisecond")
    value(queue, "select pg_sleep(0.01)::text")
    late = another()
    with queue.transaction():
        claim(queue, "heir")
        answer = background.submit(value, late, "select pgque.ack_batch(%s, %s, %s)", *zombie)
        wait_until_blocked(another(), late)
    with refused("PQ012", '"heir"'):
        answer.result()


def test_an_ack_that_meets_a_renewal_of_the_same_holder_goes_through(
    queue: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    held = claim(queue, "holder")
    keeper = another()
    with keeper.transaction():
        value(keeper, "select pgque.renew_batch(%s, %s, %s)", *held)
        answer = background.submit(value, queue, "select pgque.ack_batch(%s, %s, %s)", *held)
        wait_until_blocked(another(), queue)
    assert answer.result() == 1


def test_a_renewal_that_meets_an_ack_is_told_that_the_batch_is_finished(
    queue: Connection, another: Another, background: ThreadPoolExecutor
) -> None:
    held = claim(queue, "holder")
    keeper = another()
    with queue.transaction():
        value(queue, "select pgque.ack_batch(%s, %s, %s)", *held)
        answer = background.submit(value, keeper, "select pgque.renew_batch(%s, %s, %s)", *held)
        wait_until_blocked(another(), keeper)
    with refused("PQ003"):
        answer.result()


def test_acks_go_through_while_renewals_run_all_the_time(
    queue: Connection, another: Another
) -> None:
    keepers = [another() for _ in range(2)]
    held: list[tuple[int, str, int]] = []
    done = [False]
    first = Semaphore(0)

    def keep(keeper: Connection) -> None:
        while not done[0]:
            try:
                value(keeper, "select pgque.renew_batch(%s, %s, %s)", *held[-1])
                first.release()
            except psycopg.Error as error:
                assert error.sqlstate in ("PQ003", "PQ012")

    held.append(claim(queue, "holder"))
    with ThreadPoolExecutor() as pool:
        renewals = [pool.submit(keep, keeper) for keeper in keepers]
        try:
            # Renewals run before the first ack: on a busy machine, all others may come too late.
            assert all(first.acquire(timeout=60) for _ in keepers)
            for _ in range(30):
                value(queue, "select pgque.ack_batch(%s, %s, %s)", *held[-1])
                tick(queue)
                held.append(claim(queue, "holder"))
        finally:
            done[0] = True
    for renewal in renewals:
        renewal.result()


def test_two_plain_consumers_at_once_see_each_batch_finished_once(
    queue: Connection, another: Another
) -> None:
    for number in range(40):
        send(queue, str(number))
        tick(queue)
    sessions = [another() for _ in range(3)]

    def consume(session: Connection) -> list[int]:
        finished = []
        while (batch := next_batch(session)) is not None:
            try:
                finish(session, batch)
                finished.append(batch)
            except psycopg.Error as error:
                assert error.sqlstate == "PQ003"
        return finished

    with ThreadPoolExecutor() as pool:
        finished = [batch for done in pool.map(consume, sessions) for batch in done]
    assert (len(finished), len(set(finished))) == (41, 41)


def test_an_old_snapshot_cannot_move_a_consumer_that_moved_on(
    queue: Connection, another: Another
) -> None:
    old = another()
    old.execute("begin isolation level repeatable read")
    value(old, "select count(*) from pgque.position_log")
    finish(queue, next_batch(queue))
    with refused("40001"):
        next_batch(old)

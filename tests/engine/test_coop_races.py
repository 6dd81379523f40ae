"""Cooperative consumers at once: whatever the order, no event is lost or doubled."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from random import Random
from threading import Event

import psycopg
import pytest

from tests.support.queues import (
    PATIENCE_SECONDS,
    Connection,
    drain,
    finish,
    make_queue,
    next_batch,
    payloads,
    refused,
    rows,
    send,
    tick,
    value,
    wait_until_blocked,
)
from tests.support.workers import (
    age_worker,
    next_of,
    queue_with_ticks,
    register,
    roles,
    unregister,
    work_off,
)

Another = Callable[[], Connection]

DEAD = "40 ms"
EVENTS = 1000


class TestTwoAtOnce:
    def test_two_workers_get_different_batches(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a", "b")
        register(db, "w2")
        second = another()
        with db.transaction():
            first_batch = next_of(db, "w1")
            answer = background.submit(next_of, second, "w2")
            wait_until_blocked(another(), second)
        assert payloads(db, first_batch) == ["a"]
        assert payloads(db, answer.result()) == ["b"]

    def test_a_batch_that_was_rolled_back_goes_to_the_one_who_waited(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a")
        register(db, "w2")
        second = another()
        with db.transaction(force_rollback=True):
            next_of(db, "w1")
            answer = background.submit(next_of, second, "w2")
            wait_until_blocked(another(), second)
        assert payloads(db, answer.result()) == ["a"]

    def test_one_worker_in_two_sessions_has_one_batch(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a", "b")
        second = another()
        with db.transaction():
            batch = next_of(db, "w1")
            answer = background.submit(next_of, second, "w1")
            wait_until_blocked(another(), second)
        assert answer.result() == batch

    def test_of_an_ack_and_a_take_over_the_ack_wins_if_first(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "slow")
        age_worker(db, "slow")
        heir = another()
        with db.transaction():
            finish(db, batch)
            answer = background.submit(next_of, heir, "heir", "1 hour")
            wait_until_blocked(another(), heir)
        assert answer.result() is None

    def test_of_an_ack_and_a_take_over_the_take_over_wins_if_first(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a")
        batch = next_of(db, "slow")
        age_worker(db, "slow")
        slow = another()
        with db.transaction():
            taken = next_of(db, "heir", "1 hour")
            answer = background.submit(finish, slow, batch)
            wait_until_blocked(another(), slow)
        with refused("PQ003"):
            answer.result()
        assert payloads(db, taken) == ["a"]

    def test_two_heirs_take_over_once(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "dead")
        age_worker(db, "dead")
        register(db, "h2")
        second = another()
        with db.transaction():
            taken = next_of(db, "w1", "1 hour")
            answer = background.submit(next_of, second, "h2", "1 hour")
            wait_until_blocked(another(), second)
        assert (payloads(db, taken), answer.result()) == (["a"], None)

    def test_a_touch_in_time_prevents_a_take_over(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a")
        next_of(db, "slow")
        age_worker(db, "slow")
        heir = another()
        with db.transaction():
            value(db, "select pgque.touch_subconsumer('q', 'c', 'slow')")
            answer = background.submit(next_of, heir, "heir", "1 hour")
            wait_until_blocked(another(), heir)
        assert answer.result() is None


class TestMembersComeAndGo:
    def test_a_group_is_founded_once(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db, consumers=())
        second = another()
        with db.transaction():
            register(db, "w1")
            answer = background.submit(register, second, "w2")
            wait_until_blocked(another(), second)
        assert answer.result() == 1
        assert roles(db) == {"c": "coop_main", "c.w1": "coop_member", "c.w2": "coop_member"}

    def test_one_worker_is_registered_once(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db)
        second = another()
        with db.transaction():
            register(db, "w2")
            answer = background.submit(register, second, "w2")
            wait_until_blocked(another(), second)
        assert answer.result() == 0

    def test_a_worker_who_leaves_takes_no_batch_along(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a")
        register(db, "w2")
        second = another()
        with db.transaction():
            unregister(db, "w1")
            answer = background.submit(next_of, second, "w1")
            wait_until_blocked(another(), second)
        assert payloads(db, answer.result()) == ["a"]

    def test_a_worker_who_just_got_a_batch_does_not_leave(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db, "a")
        second = another()
        with db.transaction():
            next_of(db, "w1")
            answer = background.submit(unregister, second, "w1")
            wait_until_blocked(another(), second)
        with refused("PQ016"):
            answer.result()

    def test_a_worker_leaves_once(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db)
        register(db, "w2")
        second = another()
        with db.transaction():
            unregister(db, "w1")
            answer = background.submit(unregister, second, "w1")
            wait_until_blocked(another(), second)
        answer.result()
        assert roles(db) == {"c": "coop_main", "c.w2": "coop_member"}

    def test_the_last_one_who_leaves_meets_a_new_one(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db)
        second = another()
        with db.transaction():
            register(db, "w2")
            answer = background.submit(unregister, second, "w1")
            wait_until_blocked(another(), second)
        answer.result()
        assert roles(db) == {"c": "coop_main", "c.w2": "coop_member"}

    def test_a_consumer_that_just_opened_a_batch_is_not_converted(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)
        tick(db)
        second = another()
        with db.transaction():
            next_batch(db)
            answer = background.submit(register, second, "w1", "c", convert=True)
            wait_until_blocked(another(), second)
        with refused("PQ016"):
            answer.result()

    def test_a_consumer_that_was_just_converted_opens_no_batch(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        make_queue(db)
        tick(db)
        second = another()
        with db.transaction():
            register(db, "w1", convert=True)
            answer = background.submit(next_batch, second)
            wait_until_blocked(another(), second)
        with refused("PQ015"):
            answer.result()

    def test_a_main_consumer_that_ends_meets_a_new_worker(
        self, db: Connection, another: Another, background: ThreadPoolExecutor
    ) -> None:
        queue_with_ticks(db)
        unregister(db, "w1")
        second = another()
        with db.transaction():
            register(db, "w2", convert=True)
            answer = background.submit(value, second, "select pgque.unregister_consumer('q', 'c')")
            wait_until_blocked(another(), second)
        with refused("PQ016"):
            answer.result()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_an_old_snapshot_is_told_to_start_again(
    db: Connection, another: Another, level: str
) -> None:
    queue_with_ticks(db, "a", "b")
    register(db, "w2")
    old = another()
    old.execute(f"begin isolation level {level}".encode())
    value(old, "select count(*) from pgque.tick")
    next_of(db, "w1")
    with refused("40001"):
        next_of(old, "w2")
    old.execute("rollback")
    assert payloads(db, next_of(db, "w2")) == ["b"]


class Crew:
    """Four workers of one consumer who die, come back late, give events back; and the books."""

    def __init__(self, another: Another, seed: int) -> None:
        self.another = another
        self.seed = seed
        self.stopped = Event()
        self.accepted: Counter[str] = Counter()
        self.zombies = 0
        self.refused = 0

    def work(self, db: Connection, name: str) -> list[str]:
        """A worker until the end; returns what it consumed."""
        random = Random(f"{self.seed} {name}")
        consumed: list[str] = []
        while not self.stopped.is_set():
            with suppress(psycopg.errors.DeadlockDetected):
                batch = next_of(db, name, DEAD)
                if batch is not None:
                    consumed += self.handle(db, batch, random)
        return consumed

    def handle(self, db: Connection, batch: int, random: Random) -> list[str]:
        fate = random.random()
        try:
            texts = payloads(db, batch)
            if fate < 0.1:  # dead for as long as it takes to be replaced, then acks nevertheless
                time.sleep(random.uniform(0, 0.1))
                self.zombies += 1
            elif fate < 0.15:  # forgets its batch, and asks for the next one later
                time.sleep(0.06)
                return []
            elif fate < 0.2:
                with db.transaction(force_rollback=True):
                    finish(db, batch)
                return []
            with db.transaction():
                given_back = set()
                if fate > 0.9 and texts:
                    msg, text = random.choice(
                        rows(
                            db,
                            "select ev_id, ev_data from pgque.get_batch_events(%s)",
                            batch,
                        )
                    )
                    value(db, "select pgque.nack_batch(%s, %s, '0')", batch, [msg])
                    given_back = {text}
                finish(db, batch)
        except psycopg.Error as error:
            assert error.sqlstate == "PQ003", error
            self.refused += 1
            return []
        return [text for text in texts if text not in given_back]

    def run(self, events: int) -> Counter[str]:
        """Until so many events are sent and a late ack is refused; how often each was consumed."""
        db = self.another()
        make_queue(
            db, consumers=(), rotation_period="10 ms", max_retries="1000", ticker_max_count="5",
            ticker_max_lag="5 ms", ticker_idle_period="20 ms",
        )  # fmt: skip
        register(db, "w0")
        value(db, "select pgque.set_metadata_rotation_period('0')")
        sent: list[str] = []
        sessions = [self.another() for _ in range(4)]
        names = ["w0", "w1", "w2", "w3"]
        with ThreadPoolExecutor() as pool:
            crew = [
                pool.submit(self.work, each, name)
                for each, name in zip(sessions, names, strict=True)
            ]
            try:
                deadline = time.monotonic() + PATIENCE_SECONDS
                while len(sent) < events or not self.refused:
                    assert time.monotonic() < deadline, f"{len(sent)} sent, {self.refused} refused"
                    if any(each.done() for each in crew):
                        break
                    sent += self.produce(db, len(sent))
            finally:
                self.stopped.set()
            consumed = Counter(text for each in as_completed(crew) for text in each.result())
        time.sleep(0.05)
        consumed.update(self.clean_up(db))
        assert set(sent) == set(consumed), "an event was lost or invented"
        return consumed

    def produce(self, db: Connection, start: int) -> list[str]:
        """A few events, a tick, and at times all maintenance."""
        texts = [str(start + number) for number in range(start % 7)] or [str(start)]
        send(db, *texts)
        value(db, "select pgque.ticker()")
        if start % 5 == 0:
            value(db, "select pgque.maint()")
        return texts

    def clean_up(self, db: Connection) -> list[str]:
        """What the crew left: open batches of the dead, retries, the rest of the queue."""
        found: list[str] = []
        for _ in range(3):
            value(db, "select pgque.maint_retry_events()")
            tick(db)
            while (batch := next_of(db, "heir", "0")) is not None:
                found += payloads(db, batch)
                finish(db, batch)
        return found


@pytest.mark.parametrize("seed", [1, 2])
def test_a_crew_that_dies_at_random_consumes_each_event_once(another: Another, seed: int) -> None:
    crew = Crew(another, seed)
    consumed = crew.run(events=EVENTS)
    print(f"{len(consumed)} events, {crew.zombies} late acks, {crew.refused} refused")
    assert {text: count for text, count in consumed.items() if count != 1} == {}
    assert crew.refused > 0 and len(consumed) >= EVENTS


def test_after_the_crew_the_consumer_is_whole(db: Connection) -> None:
    queue_with_ticks(db, "a", "b")
    work_off(db, "w1")
    unregister(db, "w1")
    send(db, "c")
    tick(db)
    assert drain(db) == ["c"]

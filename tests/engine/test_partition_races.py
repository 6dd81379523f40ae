"""Workers of a partitioned consumer at once, which fail, stall and die: order and completeness."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from typing import Any

import psycopg
import pytest

from tests.support.queues import Connection, connect, empty_halves, rows, value
from tests.support.slots import Message, ack, nack, queue_with_slots, receive, send_keyed

SLOTS = 4
KEYS = 10
EVENTS_A_KEY = 40
MAX_RETRIES = 2
LEASE = "0.4 seconds"

Outcome = tuple[int, str]


class Race:
    """A queue with everybody at work. Workers note in `log` what they do, in their transactions."""

    def __init__(self, url: str, policy: str, seed: int) -> None:
        self.url = url
        self.policy = policy
        self.random = Random(seed)
        self.over = threading.Event()
        with connect(url) as db:
            queue_with_slots(db, SLOTS, policy=policy, max_retries=str(MAX_RETRIES))
            for slot in range(SLOTS):
                value(db, "select pgque.release_slot('q', 'c', %s, 'w')", slot)
            db.execute(
                "create table log (id bigint generated always as identity, key text, nr integer,"
                " outcome text)"
            )

    def run(self) -> dict[str, list[Outcome]]:
        """Returns what happened to each key's events, in order."""
        roles: list[Callable[[Connection, Random], None]] = [self.tick, self.maintain]
        roles += [self.produce_half(0), self.produce_half(1), *[self.work] * SLOTS]
        with ThreadPoolExecutor(len(roles)) as pool:
            threads = [pool.submit(self.repeat, role, self.random.random()) for role in roles]
            try:
                with connect(self.url) as db:
                    self.wait_for_the_end(db, threads)
                    found = rows(db, "select key, nr, outcome from log order by id")
            finally:
                self.over.set()
            for thread in threads:
                thread.result()
        outcomes: dict[str, list[Outcome]] = defaultdict(list)
        for key, number, outcome in found:
            outcomes[key].append((number, outcome))
        return outcomes

    def wait_for_the_end(self, db: Connection, threads: list[Any]) -> None:
        deadline = time.monotonic() + 120
        settled = "select count(*) from log where outcome in ('done', 'dead')"
        while value(db, settled) < KEYS * EVENTS_A_KEY:
            for thread in threads:
                if thread.done():
                    thread.result()
            assert time.monotonic() < deadline, rows(
                db, "select * from pgque.partition_slot_status"
            )
            time.sleep(0.05)

    def repeat(self, role: Callable[[Connection, Random], None], seed: float) -> None:
        with connect(self.url) as db:
            random = Random(seed)
            while not self.over.is_set():
                role(db, random)

    def produce_half(self, half: int) -> Callable[[Connection, Random], None]:
        sent = dict.fromkeys((f"key {number}" for number in range(half, KEYS, 2)), 0)

        def produce(db: Connection, random: Random) -> None:
            """Some events of some keys, each key in order, in a transaction that may roll back."""
            chosen = random.sample(sorted(sent), 3)
            events = [
                (key, str(number))
                for key in chosen
                for number in range(sent[key], min(sent[key] + 2, EVENTS_A_KEY))
            ]
            is_lost = random.random() < 0.2
            with db.transaction(force_rollback=is_lost):
                send_keyed(db, *events)
                pause(random, 0.02)
            if not is_lost:
                for key, number in events:
                    sent[key] = int(number) + 1

        return produce

    def tick(self, db: Connection, random: Random) -> None:
        value(db, "select pgque.force_next_tick('q')")
        value(db, "select pgque.ticker('q')")
        pause(random, 0.04)

    def maintain(self, db: Connection, random: Random) -> None:
        value(db, "select pgque.maint_retry_events()")
        empty_halves(db)
        value(db, "select pgque.maint_compact_positions()")
        value(db, "select pgque.maint_compact_ticks()")
        value(db, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        value(db, "select pgque.maint_rotate_tables_step1('q')")
        value(db, "select pgque.maint_rotate_tables_step2()")
        pause(random, 0.1)

    def work(self, db: Connection, random: Random) -> None:
        """Takes a slot under a new name, handles some pages, and leaves it in some way."""
        name = f"worker {random.getrandbits(64)}"
        slot = random.randrange(SLOTS)
        with losing_quietly():
            claimed = "select pgque.claim_slot('q', 'c', %s, %s, %s)"
            if value(db, claimed, slot, name, LEASE) is None:
                return pause(random, 0.01)
            for _ in range(random.randint(1, 6)):
                page = receive(db, slot, SLOTS, name, random.choice([1, 3, 10, 100]))
                if random.random() < 0.1:
                    return pause(random, 0.02)  # dies: nobody releases the slot
                if random.random() < 0.05:
                    time.sleep(0.6)  # stalls, and loses the lease if somebody waits for it
                with db.transaction(force_rollback=random.random() < 0.1):
                    self.handle(db, random, slot, name, page)
            value(db, "select pgque.release_slot('q', 'c', %s, %s)", slot, name)
        return None

    def handle(
        self, db: Connection, random: Random, slot: int, name: str, page: list[Message]
    ) -> None:
        failed = set()
        for message_id, _, _, payload, retries, _, key, *_ in page:
            if self.policy == "pause" and key in failed:
                continue
            outcome = "done"
            if random.random() < (0.5 if retries else 0.1):
                outcome = "dead" if (retries or 0) == MAX_RETRIES else "failed"
                nack(db, message_id, slot, SLOTS, name, after="0.05 seconds")
            if outcome in ("failed", "dead"):
                failed.add(key)
            db.execute(
                "insert into log (key, nr, outcome) values (%s, %s, %s)",
                [key, int(payload), outcome],
            )
        ack(db, slot, SLOTS, name)


def pause(random: Random, longest: float) -> None:
    time.sleep(random.uniform(0, longest))


@contextmanager
def losing_quietly() -> Iterator[None]:
    """Lets an attempt end that another worker has beaten, or a compaction in between."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in ("PQ012", "40001"):
            raise


@pytest.mark.parametrize("seed", range(2))
class TestRaces:
    def test_with_pause_a_key_goes_on_only_when_its_event_is_settled(
        self, database_url: str, seed: int
    ) -> None:
        for key, outcomes in Race(database_url, "pause", seed).run().items():
            settled = 0
            for number, outcome in outcomes:
                assert number == settled, (key, outcomes)
                settled += outcome != "failed"
            assert settled == EVENTS_A_KEY

    def test_with_skip_each_event_is_settled_once_and_first_tried_in_order(
        self, database_url: str, seed: int
    ) -> None:
        for key, outcomes in Race(database_url, "skip", seed).run().items():
            first_tries = list(dict.fromkeys(number for number, _ in outcomes))
            assert first_tries == list(range(EVENTS_A_KEY)), (key, outcomes)
            settled = [number for number, outcome in outcomes if outcome != "failed"]
            assert sorted(settled) == list(range(EVENTS_A_KEY)), (key, outcomes)

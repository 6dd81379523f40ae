"""Workers of a partitioned consumer at once, which fail, stall and die: order and completeness."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import psycopg
import pytest

from tests.support.queues import Connection, connect, empty_halves, rows, tick, value
from tests.support.slot_batches import PATIENCE_SECONDS, finish, subscribe, take
from tests.support.slots import (
    Message,
    ack,
    claim,
    nack,
    queue_with_slots,
    receive,
    release,
    send_keyed,
)

SLOTS = 4
KEYS = [f"key {number}" for number in range(8)]
FEW, MANY = 12, 60  # events of each key
MAX_RETRIES = 2
LEASE = "0.3 seconds"
SETTLED = "select count(*) from done where outcome <> 'failed'"
# What another worker, another number of slots or maintenance may do to an attempt.
BEATEN = {"PQ002", "PQ003", "PQ004", "PQ005", "PQ012", "40001", "40P01"}

Role = Callable[[Connection, Random], None]
Outcomes = dict[str, list[tuple[int, str]]]


@contextmanager
def losing_quietly(*sqlstates: str) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in sqlstates:
            raise


def pause(random: Random, longest: float) -> None:
    time.sleep(random.uniform(0, longest))


def play(url: str, count: int, *workers: Role) -> Outcomes:
    """Everybody works until each event is settled; returns what became of each key's, in order.

    Workers note in the table done what they do, in their transactions.
    """
    over = threading.Event()
    producers = [producer(KEYS[half::2], count) for half in range(2)]
    roles = [ticker, maintainer, *producers, *workers]

    def repeat(role: Role, seed: int) -> None:
        random = Random(seed)
        with connect(url) as db:
            while not over.is_set():
                role(db, random)

    with connect(url) as db, ThreadPoolExecutor(len(roles)) as pool:
        threads = [pool.submit(repeat, role, seed) for seed, role in enumerate(roles)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while value(db, SETTLED) < len(KEYS) * count:
                for thread in threads:
                    if thread.done():
                        thread.result()
                assert time.monotonic() < deadline, rows(
                    db, "select * from pgque.partition_slot_status"
                )
                time.sleep(0.05)
        finally:
            over.set()
        for thread in threads:
            thread.result()
        outcomes: Outcomes = defaultdict(list)
        for key, number, outcome in rows(db, "select key, nr, outcome from done order by id"):
            outcomes[key].append((number, outcome))
    return outcomes


def note(db: Connection, key: str, number: int, outcome: str, batch: int | None = None) -> None:
    sql = "insert into done (key, nr, outcome, batch) values (%s, %s, %s, %s)"
    db.execute(sql, [key, number, outcome, batch])


def producer(keys: list[str], count: int) -> Role:
    sent = dict.fromkeys(keys, 0)

    def produce(db: Connection, random: Random) -> None:
        """Some events of some keys, each key in order, in a transaction that may roll back."""
        events = [
            (key, str(number))
            for key in random.sample(keys, 3)
            for number in range(sent[key], min(sent[key] + 2, count))
        ]
        is_lost = random.random() < 0.2
        with db.transaction(force_rollback=is_lost):
            send_keyed(db, *events)
            pause(random, 0.02)
        if not is_lost:
            for key, number in events:
                sent[key] = int(number) + 1

    return produce


def ticker(db: Connection, random: Random) -> None:
    tick(db)
    pause(random, 0.04)


def maintainer(db: Connection, random: Random) -> None:
    value(db, "select pgque.maint_retry_events()")
    empty_halves(db)
    value(db, "select pgque.maint_compact_positions()")
    value(db, "select pgque.maint_compact_ticks()")
    with losing_quietly("40P01"):
        value(db, "select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        value(db, "select pgque.maint_rotate_tables_step1('q')")
        value(db, "select pgque.maint_rotate_tables_step2()")
    pause(random, 0.1)


@pytest.fixture
def queue(db: Connection) -> Connection:
    queue_with_slots(db, SLOTS, max_retries=str(MAX_RETRIES))
    for slot in range(SLOTS):
        release(db, slot)
    db.execute(
        "create table done (id bigint generated always as identity, key text, nr integer,"
        " outcome text, batch bigint)"
    )
    return db


class TestFailures:
    """Workers fail events, stall, and die with their slot and page."""

    def worker(self) -> Role:
        def work(db: Connection, random: Random) -> None:
            """Takes a slot under a new name, handles some pages, and leaves it in some way."""
            name = f"worker {random.getrandbits(64)}"
            slot = random.randrange(SLOTS)
            with losing_quietly("PQ012", "40001"):
                if claim(db, slot, name, LEASE) is None:
                    return pause(random, 0.01)
                for _ in range(random.randint(1, 6)):
                    page = receive(db, slot, SLOTS, name, random.choice([1, 3, 10, 100]))
                    if random.random() < 0.1:
                        return pause(random, 0.02)  # dies: nobody releases the slot
                    if random.random() < 0.05:
                        time.sleep(0.4)  # stalls, and loses the lease if somebody waits for it
                    with db.transaction(force_rollback=random.random() < 0.1):
                        handle(db, random, slot, name, page)
                release(db, slot, name)
            return None

        def handle(
            db: Connection, random: Random, slot: int, name: str, page: list[Message]
        ) -> None:
            for message_id, _, _, payload, retries, _, key, *_ in page:
                outcome = "done"
                if random.random() < (0.5 if retries else 0.1):
                    outcome = "dead" if (retries or 0) == MAX_RETRIES else "failed"
                    nack(db, message_id, slot, SLOTS, name, after="0.05 seconds")
                note(db, key, int(payload), outcome)
            ack(db, slot, SLOTS, name)

        return work

    def test_events_are_settled_once(self, queue: Connection, database_url: str) -> None:
        found = play(database_url, FEW, *[self.worker()] * SLOTS)
        for key, outcomes in found.items():
            first_tries = list(dict.fromkeys(number for number, _ in outcomes))
            assert first_tries == list(range(FEW)), (key, outcomes)
            settled = [number for number, outcome in outcomes if outcome != "failed"]
            assert sorted(settled) == list(range(FEW)), (key, outcomes)


class TestSlotsThatChange:
    """Another number of slots, again and again, while workers go on with pages or batches."""

    def work_by_pages(self, db: Connection, random: Random) -> None:
        n = value(db, "select n from pgque.partition_consumer")
        slot, me = random.randrange(n), f"worker {db.info.backend_pid}"
        with losing_quietly(*BEATEN), db.transaction():
            if claim(db, slot, me) is None:
                return
            for message in receive(db, slot, n, me, 7):
                note(db, message[6], int(message[3]), "done")
            ack(db, slot, n, me)
            release(db, slot, me)

    def work_by_batches(self, db: Connection, random: Random) -> None:
        """A batch is stored under its id, as sinks do, and then acked; some runs die between."""
        n = value(db, "select n from pgque.partition_consumer")
        slot = random.randrange(n)
        with losing_quietly(*BEATEN):
            claimed = take(db, slot, n, f"run {random.getrandbits(64)}", LEASE, most=50)
            if claimed is None:
                return
            sql = "select ev_extra1, ev_data::integer from pgque.get_batch_events(%s)"
            found = rows(db, sql, claimed.batch)
            with db.transaction():  # replaces what an earlier attempt stored
                db.execute("delete from done where batch = %s", [claimed.batch])
                for key, number in found:
                    note(db, key, number, "done", claimed.batch)
                value(db, "select pgque.renew_batch(%s, %s, %s, %s)", *claimed, LEASE)
            if random.random() < 0.85:
                finish(db, claimed)

    def change(self, db: Connection, random: Random) -> None:
        n = random.choice([1, 2, 3, 5, 8])
        ends_at = time.monotonic() + 2
        while time.monotonic() < ends_at:
            with losing_quietly("40P01"):
                if value(db, "select pgque.repartition('q', 'c', %s)", n) == 0:
                    self.changes += 1
                    break
            pause(random, 0.02)
        time.sleep(0.1)

    @pytest.mark.parametrize("way", ["pages", "batches"])
    def test_keep_events_in_order(self, queue: Connection, database_url: str, way: str) -> None:
        subscribe(queue, SLOTS)
        self.changes = 0
        work = self.work_by_pages if way == "pages" else self.work_by_batches
        outcomes = play(database_url, MANY, self.change, work, work)
        expected = [(number, "done") for number in range(MANY)]
        assert outcomes == dict.fromkeys(KEYS, expected)
        assert self.changes > 0

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

from tests.support.queues import Connection, connect
from tests.support.slot_batches import PATIENCE_SECONDS, finish, subscribe, take
from tests.support.slots import (
    ack,
    claim,
    queue_with_slots,
    receive,
    release,
    send_keyed,
)

SLOTS = 4
KEYS = [f"key {number}" for number in range(8)]
EVENTS = 60  # of each key
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
            while db.value(SETTLED) < len(KEYS) * count:
                for thread in threads:
                    if thread.done():
                        thread.result()
                assert time.monotonic() < deadline, db.rows(
                    "select * from pgque.partition_slot_status"
                )
                time.sleep(0.05)
        finally:
            over.set()
        for thread in threads:
            thread.result()
        outcomes: Outcomes = defaultdict(list)
        for key, number, outcome in db.rows("select key, nr, outcome from done order by id"):
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
    db.tick()
    pause(random, 0.04)


def maintainer(db: Connection, random: Random) -> None:
    db.value("select pgque.maint_retry_events()")
    db.empty_halves()
    db.value("select pgque.maint_compact_positions()")
    db.value("select pgque.maint_compact_ticks()")
    with losing_quietly("40P01"):
        db.value("select pgque.set_queue_config('q', 'rotation_period', '1 microsecond')")
        db.value("select pgque.maint_rotate_tables_step1('q')")
        db.value("select pgque.maint_rotate_tables_step2()")
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


class TestSlotsThatChange:
    """Another number of slots, again and again, while workers go on with pages or batches."""

    def work_by_pages(self, db: Connection, random: Random) -> None:
        n = db.value("select n from pgque.partition_consumer")
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
        n = db.value("select n from pgque.partition_consumer")
        slot = random.randrange(n)
        with losing_quietly(*BEATEN):
            claimed = take(db, slot, n, f"run {random.getrandbits(64)}", LEASE, most=50)
            if claimed is None:
                return
            sql = "select ev_extra1, ev_data::integer from pgque.get_batch_events(%s)"
            found = db.rows(sql, claimed.batch)
            with db.transaction():  # replaces what an earlier attempt stored
                db.execute("delete from done where batch = %s", [claimed.batch])
                for key, number in found:
                    note(db, key, number, "done", claimed.batch)
                db.value("select pgque.renew_batch(%s, %s, %s, %s)", *claimed, LEASE)
            if random.random() < 0.85:
                finish(db, claimed)

    def change(self, db: Connection, random: Random) -> None:
        n = random.choice([1, 2, 3, 5, 8])
        ends_at = time.monotonic() + 2
        while time.monotonic() < ends_at:
            with losing_quietly("40P01"):
                if db.value("select pgque.repartition('q', 'c', %s)", n) == 0:
                    self.changes += 1
                    break
            pause(random, 0.02)
        time.sleep(0.1)

    @pytest.mark.parametrize("way", ["pages", "batches"])
    def test_keep_events_in_order(self, queue: Connection, database_url: str, way: str) -> None:
        subscribe(queue, SLOTS)
        self.changes = 0
        work = self.work_by_pages if way == "pages" else self.work_by_batches
        outcomes = play(database_url, EVENTS, self.change, work, work)
        expected = [(number, "done") for number in range(EVENTS)]
        assert outcomes == dict.fromkeys(KEYS, expected)
        assert self.changes > 0

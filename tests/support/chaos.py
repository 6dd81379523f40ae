"""The workers of a busy queue as processes, which may lose their connection at any moment.

Books are kept in the database, in the transactions that they are about: a producer notes what it
sends in `ledger`, a consumer what it processes in `sink`. So neither can be wrong about a commit.

    python -m tests.support.chaos ROLE URL SEED

If CHAOS_MEANINGS names a folder, it keeps what each batch id means, and survives the server.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psycopg

from tests.support.queues import Connection, connect

BOOKS = """
create table ledger (payload text primary key);
create table sink (consumer text, batch_id bigint, payload text);
"""
LEASE_SECONDS = 0.5
MEANINGS = "CHAOS_MEANINGS"
NACK_KNOWS_HOLDERS = """
select to_regprocedure('pgque.nack_batch(bigint,bigint[],interval,text,text,bigint)') is not null
"""
PLAIN_BATCH = """
select batch_id from pgque.next_batch_custom('q', 'plain', null, null, null, 200)
"""
# Not open any more, leased by another, lease lost.
BEATEN = ("PQ003", "PQ004", "PQ012")
# Another number of slots, no such slot, and a deadlock with a worker: see docs/partitions.md.
REPARTITIONED = (*BEATEN, "PQ005", "PQ002", "40P01")
# They wait for a second at most, and an upgrade on a busy machine holds its locks for longer.
LOCKED_OUT = (*BEATEN, "55P03")
PREPARED = """
select gid from pg_prepared_xacts
where database = current_database() and split_part(gid, '/', 1) = %s
"""
SLOTS = "select n from pgque.partition_consumer where co_name = 'parted'"
PAGE = "select payload from pgque.receive_partitioned('q', 'parted', %s, %s, %s, 100)"


Work = Callable[[Connection, Random, str], None]


class Calm(Random):
    """Lets nothing go wrong."""

    def random(self) -> float:
        return 0.999


def produce(db: Connection, random: Random, name: str) -> None:
    """One transaction, with savepoints, that may be rolled back or lose its connection."""
    prefix = f"{name}/{random.getrandbits(64)}"
    sent = 0
    with db.transaction(force_rollback=random.random() < 0.2):
        for _ in range(random.randint(1, 4)):
            with db.transaction(force_rollback=random.random() < 0.3):
                payloads = [f"{prefix}/{sent + n}" for n in range(random.randint(1, 5))]
                sent += len(payloads)
                db.value("select pgque.send_batch('q', 't', %s::text[])", payloads)
                db.execute("insert into ledger select unnest(%s::text[])", [payloads])
            pause(random, 0.01)
        if random.random() < 0.02:
            pause(random, 2)  # open across ticks and rotations
        if random.random() < 0.02:
            db.close()


def prepare(db: Connection, random: Random, name: str) -> None:
    """A transaction that ends long after its session left it: PREPARE, ticks, COMMIT PREPARED."""
    for (left,) in db.rows(PREPARED, name):  # by a connection that was lost in between
        db.execute(f"commit prepared '{left}'".encode())
    transaction = f"{name}/{random.getrandbits(64)}"
    payloads = [f"{transaction}/{number}" for number in range(random.randint(1, 5))]
    with db.pipeline():
        db.execute("begin")
        db.execute("select pgque.send_batch('q', 't', %s::text[])", [payloads])
        db.execute("insert into ledger select unnest(%s::text[])", [payloads])
        db.execute(f"prepare transaction '{transaction}'".encode())
    pause(random, 0.5)
    ending = "rollback" if random.random() < 0.2 else "commit"
    db.execute(f"{ending} prepared '{transaction}'".encode())


def send_elsewhere(db: Connection, random: Random, name: str) -> None:
    """Events of another queue, which no ledger knows: a consumer of q that gets one shows it."""
    db.value("select pgque.send('other', 't', %s::text)", f"other/{random.getrandbits(64)}")
    db.rows("select * from pgque.receive('other', 'c', 50)")
    batch = db.value("select pgque.next_batch('other', 'c')")
    if batch is not None:
        with losing_quietly():
            db.value("select pgque.finish_batch(%s)", batch)
    pause(random, 0.02)


def work_a_slot(db: Connection, random: Random, name: str) -> None:
    """Takes any slot, keeps its page and acks it, in one transaction."""
    slots = db.value(SLOTS)
    slot = random.randrange(slots)
    worker = (slot, name, f"{LEASE_SECONDS} seconds")
    if db.value("select pgque.claim_slot('q', 'parted', %s, %s, %s::interval)", *worker) is None:
        return pause(random, 0.02)
    pause(random, LEASE_SECONDS * 2 if random.random() < 0.05 else 0.02)
    with db.transaction(force_rollback=random.random() < 0.05):
        page = db.rows(PAGE, slot, slots, name)
        payloads = [payload for (payload,) in page]
        db.execute("insert into sink select 'parted', 0, unnest(%s::text[])", [payloads])
        if page:
            db.value("select pgque.ack_partitioned('q', 'parted', %s, %s, %s)", slot, slots, name)
    db.value("select pgque.release_slot('q', 'parted', %s, %s)", slot, name)
    return None


def repartition(db: Connection, random: Random, name: str) -> None:
    """Another number of slots, while workers are busy with those of before."""
    pause(random, 2)
    slots = random.randint(1, 5)
    for _ in range(30):
        if db.value("select pgque.repartition('q', 'parted', %s)", slots) == 0:
            return
        pause(random, 0.2)


def tick(db: Connection, random: Random, name: str) -> None:
    db.value("select pgque.ticker()")
    pause(random, 0.01)


def maintain(db: Connection, random: Random, name: str) -> None:
    db.value("select pgque.maint()")
    if random.random() < 0.2:  # more often than maint does it
        db.execute("update pgque.log_rotation set rotated_at = null")
        db.value("select pgque.maint()")
    pause(random, 0.05)


def consume_leased(db: Connection, random: Random, name: str) -> None:
    """Claims a batch, may work longer than the lease, and acks in the sink's transaction."""
    ((batch, epoch),) = db.rows(
        "select batch_id, epoch from pgque.claim_batch('q', 'leased', %s, %s::interval,"
        " i_max_count => 200)",
        name,
        f"{LEASE_SECONDS} seconds",
    )
    if batch is None:
        return pause(random, 0.02)
    pause(random, LEASE_SECONDS * 2 if random.random() < 0.1 else 0.02)
    return settle(db, random, "leased", batch, "ack_batch", f", '{name}', {epoch}")


def consume_plain(db: Connection, random: Random, name: str) -> None:
    """PgQ's way: of two workers on one batch only the first to finish keeps its work."""
    batch = db.value(PLAIN_BATCH)
    if batch is None:
        return pause(random, 0.02)
    pause(random, 0.02)
    return settle(db, random, "plain", batch, "finish_batch")


def settle(
    db: Connection, random: Random, consumer: str, batch: int, ack: str, holder: str = ""
) -> None:
    with db.transaction(force_rollback=random.random() < 0.05):
        events = db.rows("select ev_id, ev_data from pgque.get_batch_events(%s)", batch)
        if MEANINGS in os.environ:
            keep_meaning(Path(os.environ[MEANINGS]), batch, sorted(text for _, text in events))
        failed = [event_id for event_id, _ in events if random.random() < 0.05]
        done = [payload for event_id, payload in events if event_id not in failed]
        db.execute("insert into sink select %s, %s, unnest(%s::text[])", [consumer, batch, done])
        # Version 0.1.0 asks nobody who he is.
        named = f", null{holder}" if holder and db.value(NACK_KNOWS_HOLDERS) else ""
        db.value(f"select pgque.nack_batch(%s, %s::bigint[], '0'{named})", batch, failed)
        db.value(f"select pgque.{ack}(%s{holder})", batch)
        if random.random() < 0.02:
            db.close()


def keep_meaning(folder: Path, batch: int, payloads: list[str]) -> None:
    """Notes the events of a batch outside the database; whoever read other ones fails."""
    meaning = "\n".join(payloads)
    with tempfile.NamedTemporaryFile("w", dir=folder) as file:
        file.write(meaning)
        file.flush()
        try:
            os.link(file.name, folder / str(batch))
        except FileExistsError:
            known = (folder / str(batch)).read_text()
            assert known == meaning, f"batch {batch} was {known!r}, and is {meaning!r}"


@contextmanager
def losing_quietly(states: tuple[str, ...] = BEATEN) -> Iterator[None]:
    """Lets an attempt end that another one has beaten."""
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in states:
            raise


def pause(random: Random, longest: float) -> None:
    time.sleep(random.uniform(0, longest))


ROLES: dict[str, Work] = {
    "producer": produce,
    "ticker": tick,
    "maintainer": maintain,
    "preparer": prepare,
    "elsewhere": send_elsewhere,
    "slot": work_a_slot,
    "repartitioner": repartition,
    "leased": consume_leased,
    "plain": consume_plain,
}
LOSES = dict.fromkeys(("slot", "repartitioner"), REPARTITIONED) | dict.fromkeys(
    ("ticker", "maintainer"), LOCKED_OUT
)


OVERTAKEN = ("cache lookup failed for type", 'relation "pgque.tick_retention" does not exist')


def is_disturbance(error: psycopg.Error) -> bool:
    """Whether the cause was a lost connection, a stopped server, a cancelled statement, or a
    compaction in between.

    Or an upgrade: a call of 0.1.0 that it overtook finds no table of ticks, but a view, and misses
    what the upgrade drops.
    """
    state = error.sqlstate
    overtaken = state == "42P10" or any(words in str(error) for words in OVERTAKEN)
    return state is None or state.startswith(("08", "57")) or state == "40001" or overtaken


def work(role: str, url: str, seed: int) -> None:
    """Works until `stop` holds a row. Any error that no disturbance explains ends the process."""
    random = Random(seed)
    name = f"{role}-{seed}"
    while True:
        try:
            with connect(f"{url}&application_name=chaos-{name}") as db:
                while not db.value("select count(*) from stop"):
                    with losing_quietly(LOSES.get(role, BEATEN)):
                        ROLES[role](db, random, name)
                    if db.closed:
                        break
                else:
                    return
        except psycopg.Error as error:
            if not is_disturbance(error):
                raise
        time.sleep(0.05)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]))

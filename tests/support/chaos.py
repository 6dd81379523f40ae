"""The workers of a busy queue as processes, which may lose their connection at any moment.

Books are kept in the database, in the transactions that they are about: a producer notes what it
sends in `ledger`, a consumer what it processes in `sink`. So neither can be wrong about a commit.

    python -m tests.support.chaos ROLE URL SEED
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import psycopg

from tests.support.queues import Connection, connect

BOOKS = """
create table ledger (payload text primary key);
create table sink (consumer text, batch_id bigint, payload text);
"""
LEASE_SECONDS = 0.5
PLAIN_BATCH = """
select batch_id from pgque.next_batch_custom('q', 'plain', null, null, null, 200)
"""
# Not open any more, leased by another, lease lost.
BEATEN = ("PQ003", "PQ004", "PQ012")
# They wait for a second at most, and an upgrade on a busy machine holds its locks for longer.
LOCKED_OUT = (*BEATEN, "55P03")


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
        failed = [event_id for event_id, _ in events if random.random() < 0.05]
        done = [payload for event_id, payload in events if event_id not in failed]
        db.execute("insert into sink select %s, %s, unnest(%s::text[])", [consumer, batch, done])
        named = f", null{holder}" if holder else ""
        db.value(f"select pgque.nack_batch(%s, %s::bigint[], '0'{named})", batch, failed)
        db.value(f"select pgque.{ack}(%s{holder})", batch)
        if random.random() < 0.02:
            db.close()


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
    "leased": consume_leased,
    "plain": consume_plain,
}
LOSES = dict.fromkeys(("ticker", "maintainer"), LOCKED_OUT)


def is_disturbance(error: psycopg.Error) -> bool:
    """Whether the cause was a lost connection, a compaction, or an upgrade in between."""
    state = error.sqlstate
    overtaken = state == "42P10" or "cache lookup failed for type" in str(error)
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

"""The workers of busy serial queues, for tests/addons/test_chaos.py.

Senders note what they send in `ledger`, in the same transaction. The consumer `inside` and the
removers note what they get in the same transaction, too. The consumer `outside` stores it
in a second database before it commits, so it may store an entry twice, as the same row.
"""

import time
from random import Random

from tests.support.addons.chaos import Work
from tests.support.addons.serial import add, consume, make_sp, make_sr, publish, remove
from tests.support.queues.sql import Connection, connect

ADDON = "qgres"
LOG = "qgres.sp"
BOOKS = """
create table ledger (queue text, number bigint, payload text primary key);
create table sink (queue text, number bigint, payload text primary key);
"""
SINK = "create table sink (id bigint primary key, payload text)"


def prepare(db: Connection) -> None:
    """The queues and the books."""
    db.execute(BOOKS.encode())
    make_sp(db, consumers=("inside", "outside"))
    make_sr(db)
    assert db.value("select qgres.log_queue('sp')") == LOG
    db.value("select pgque.register_consumer(%s, 'c')", LOG)
    db.execute("update pgque.config set metadata_rotation_period = '0'")


def send(db: Connection, sink: str, random: Random) -> None:
    """Publishes and adds, in a transaction with savepoints that may be rolled back."""
    with db.transaction(force_rollback=random.random() < 0.2):
        for _ in range(random.randint(1, 3)):
            with db.transaction(force_rollback=random.random() < 0.2):
                text = f"{random.getrandbits(64)}"
                (number,) = publish(db, text)
                db.execute("insert into ledger values ('sp', %s, %s)", [number, text])
                add(db, text)
                db.execute("insert into ledger values ('sr', null, %s)", [f"sr {text}"])
        if random.random() < 0.05:
            time.sleep(random.uniform(0, 0.2))


def consume_inside(db: Connection, sink: str, random: Random) -> None:
    """Stores the entries in the transaction that consumes them."""
    with db.transaction(force_rollback=random.random() < 0.1):
        for number, text in consume(db, "inside", random.randint(1, 20)):
            db.execute("insert into sink values ('sp', %s, %s)", [number, text])


def consume_outside(db: Connection, sink: str, random: Random) -> None:
    """Stores the entries in another database first, where an entry counts once."""
    with connect(sink) as other, db.transaction(force_rollback=random.random() < 0.1):
        for row in consume(db, "outside", random.randint(1, 20)):
            sql = (
                "insert into sink as s values (%s, %s) on conflict (id)"
                " do update set payload = excluded.payload || s.payload"
                " where excluded.payload <> s.payload"
            )
            other.execute(sql.encode(), row)


def remove_some(db: Connection, sink: str, random: Random) -> None:
    """Stores the entries in the transaction that removes them."""
    with db.transaction(force_rollback=random.random() < 0.1):
        for text in remove(db, random.randint(1, 20)):
            db.execute("insert into sink values ('sr', null, %s)", [f"sr {text}"])


def maintain(db: Connection, sink: str, random: Random) -> None:
    """Rotates all the time, and ticks the log."""
    db.value("select qgres.maint()")
    db.tick(LOG)
    time.sleep(0.01)


ROLES: dict[str, Work] = {
    "sender": send,
    "inside": consume_inside,
    "outside": consume_outside,
    "remover": remove_some,
    "maintainer": maintain,
}
CAST = ["sender"] * 3 + ["inside"] * 2 + ["outside"] * 2 + ["remover"] * 2 + ["maintainer"]


def drain(db: Connection, sink: str) -> None:
    """Reads what is left, without anything that goes wrong."""
    calm = Random(0)
    calm.random = lambda: 0.999  # type: ignore[method-assign]
    for _ in range(100_000):
        before = db.value("select count(*) from sink")
        for step in (consume_inside, consume_outside, remove_some):
            step(db, sink, calm)
        last = db.value("select max(number) from ledger")
        with connect(sink) as other:
            is_read = other.value("select coalesce(max(id), 0)::bigint from sink") >= last
        if is_read and db.value("select count(*) from sink") == before:
            return


def check_results(db: Connection, outside: list[tuple[int, str]]) -> None:
    """Numbers without gaps, each committed entry once for each consumer, in order in the log."""
    ledger = "select number, payload from {} where queue = 'sp' order by number"
    published = db.rows(ledger.format("ledger"))
    assert [number for number, _ in published] == list(range(1, len(published) + 1))
    assert db.rows(ledger.format("sink")) == published
    assert outside == published
    db.tick(LOG)
    assert db.drain(LOG) == [text for _, text in published]
    added = "select payload from {} where queue = 'sr' order by payload"
    assert db.rows(added.format("sink")) == db.rows(added.format("ledger"))

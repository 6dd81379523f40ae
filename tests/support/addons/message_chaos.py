"""The workers of a busy topic, for tests/addons/test_chaos.py.

Publishers note what they publish in `ledger`, in the same transaction. Consumers note in `sink`
what they ack, in the same transaction, so a message that is acked twice is there twice. Those of
the exclusive queue store it in a second database first, where it counts once.
"""

import math
import time
from random import Random

from tests.support.addons.chaos import Work, losing_quietly, pause
from tests.support.addons.messages import ack, consume, make_queue, nack, release, statistics
from tests.support.queues.sql import PATIENCE_SECONDS, Connection, connect

ADDON = "postgremq"
VT_SECONDS = 1
QUEUES = ("shared", "own")
BOOKS = """
create table ledger (id integer primary key, payload text);
create table sink (queue text, id integer, payload text);
"""
SINK = "create table sink (id integer primary key, payload text)"
REFUSED = "P0001"  # another consumer has the message


def prepare(db: Connection) -> None:
    """The topic, its queues and the books."""
    db.execute(BOOKS.encode())
    make_queue(db, "shared")
    db.value("select postgremq.create_queue('own', 't', 0, true, 86400)")
    db.execute("update postgremq.rotation set period = '1 s'")


def publish(db: Connection, sink: str, random: Random) -> None:
    """Publishes, some of it for later, in a transaction with savepoints that may be rolled back."""
    with db.transaction(force_rollback=random.random() < 0.2):
        for _ in range(random.randint(1, 5)):
            with db.transaction(force_rollback=random.random() < 0.2):
                text = f"{random.getrandbits(64)}"
                delay = random.choice((0, 0, 0, 0.2))
                sql = (
                    "insert into ledger select postgremq.publish_message("
                    "'t', to_jsonb(%s::text), now() + make_interval(secs => %s)), %s"
                )
                db.execute(sql.encode(), [text, delay, text])
        if random.random() < 0.1:
            pause(random, 0.3)


def consume_some(db: Connection, random: Random, queue: str, outside: Connection | None) -> None:
    """Claims messages, and answers each in one of the ways that there are, or not at all."""
    claims = consume(db, queue, VT_SECONDS, random.randint(1, 20))
    if random.random() < 0.05:
        pause(random, 2 * VT_SECONDS)
    for claim in claims:
        answer = random.random()
        with losing_quietly(REFUSED):
            if answer < 0.05:
                nack(db, claim, "now() + interval '0.1 s'")
            elif answer < 0.1:
                release(db, claim)
            elif answer < 0.15:
                extend = "select postgremq.set_vt(%s, %s, %s, %s)"
                db.value(extend, queue, claim.id, claim.token, VT_SECONDS)
            elif answer < 0.95:
                if outside is not None:
                    outside.execute(
                        "insert into sink values (%s, %s) on conflict (id) do nothing",
                        [claim.id, claim.payload],
                    )
                with db.transaction(force_rollback=random.random() < 0.1):
                    ack(db, claim)
                    note(db, queue, [claim.id])


def consume_shared(db: Connection, sink: str, random: Random) -> None:
    """Acks one by one, or all in one call."""
    if random.random() < 0.5:
        return consume_some(db, random, "shared", None)
    claims = consume(db, "shared", VT_SECONDS, random.randint(1, 20))
    with db.transaction(force_rollback=random.random() < 0.1):
        sql = "select * from postgremq.ack_message_batch('shared', %s, %s::varchar[])"
        done = db.rows(sql, [claim.id for claim in claims], [claim.token for claim in claims])
        note(db, "shared", [id_ for (id_,) in done])
        if random.random() < 0.1:
            pause(random, 2 * VT_SECONDS)
    return None


def consume_own(db: Connection, sink: str, random: Random) -> None:
    """Stores messages in another database before it acks them."""
    with connect(sink) as outside:
        consume_some(db, random, "own", outside)


def note(db: Connection, queue: str, ids: list[int]) -> None:
    sql = (
        "insert into sink select %s, m.id, m.payload #>> '{}' from postgremq.messages m"
        " where m.id = any (%s::int[])"
    )
    db.execute(sql.encode(), [queue, ids])


def maintain(db: Connection, sink: str, random: Random) -> None:
    """Rotates all the time, also when little was written."""
    db.value("select postgremq.maint()")
    if random.random() < 0.02:
        db.execute(
            "select setval('postgremq.turn', pg_sequence_last_value('postgremq.turn') + 1)"
            " from (select from postgremq.rotation for update) locked"
            " where pg_relation_size("
            "format('postgremq.state_%s', 1 - postgremq.current_part())) = 0"
        )
    pause(random, 0.05)


ROLES: dict[str, Work] = {
    "publisher": publish,
    "shared": consume_shared,
    "own": consume_own,
    "maintainer": maintain,
}
CAST = ["publisher"] * 2 + ["shared"] * 3 + ["own"] * 2 + ["maintainer"]


def drain(db: Connection, sink: str) -> None:
    """Consumes what is left, without anything that goes wrong. Without maintenance, too: a message
    that it moves is found even if a floor has passed over it.
    """
    calm = Random(0)
    calm.random = lambda: 0.94  # type: ignore[method-assign]
    left = "select sum(pending_count + processing_count)::int from postgremq.get_queue_statistics()"
    least, deadline = math.inf, 0.0
    while count := db.value(left):
        if count < least:
            least, deadline = count, time.monotonic() + PATIENCE_SECONDS
        assert time.monotonic() < deadline, f"{count} messages are left"
        consume_shared(db, sink, calm)
        consume_own(db, sink, calm)


def check_results(db: Connection, outside: list[tuple[int, str]]) -> None:
    """Each message whose publisher has committed, and no other, once in each queue."""
    published = db.rows("select id, payload from ledger order by id")
    assert db.rows("select id, payload #>> '{}' from postgremq.messages order by id") == published
    for queue in QUEUES:
        acked = f"select id, payload from sink where queue = '{queue}' order by id"
        assert db.rows(acked) == published
        assert statistics(db, queue) == (0, 0, len(published), len(published))
    assert outside == published
    changed = (
        "select relname from pg_stat_user_tables where schemaname = 'postgremq'"
        " and relname ~ '^(state|floor|messages|finished)' and (n_tup_upd > 0 or n_tup_del > 0)"
    )
    assert db.rows(changed) == []

"""Builders and questions that the tests of the add-on postgremq share."""

from typing import Any, NamedTuple

from tests.support.queues.sql import Connection


class Claim(NamedTuple):
    """One row of consume_message."""

    queue: str
    id: int
    payload: Any
    token: str
    attempts: int
    vt: Any
    published_at: Any


def make_queue(db: Connection, queue: str = "q", topic: str = "t", max_attempts: int = 0) -> None:
    db.value("select postgremq.create_topic(%s)", topic)
    db.value("select postgremq.create_queue(%s, %s, %s)", queue, topic, max_attempts)


def publish(db: Connection, *payloads: int, topic: str = "t") -> list[int]:
    sql = "select postgremq.publish_message(%s, to_jsonb(%s::int))"
    return [db.value(sql, topic, payload) for payload in payloads]


def publish_many(db: Connection, count: int) -> None:
    """Publishes the numbers from 1 on."""
    db.execute(
        "insert into postgremq.messages (topic_name, payload)"
        " select 't', to_jsonb(n) from generate_series(1, %s) n",
        [count],
    )


def consume(db: Connection, queue: str = "q", vt: int = 60, limit: int | None = 1) -> list[Claim]:
    sql = "select * from postgremq.consume_message(%s, %s, %s)"
    return [Claim(*row) for row in db.rows(sql, queue, vt, limit)]


def ack(db: Connection, claim: Claim) -> None:
    db.rows("select postgremq.ack_message(%s, %s, %s)", claim.queue, claim.id, claim.token)


def nack(db: Connection, claim: Claim, until: str = "now()") -> None:
    sql = f"select postgremq.nack_message(%s, %s, %s, {until})"
    db.rows(sql, claim.queue, claim.id, claim.token)


def release(db: Connection, claim: Claim) -> None:
    sql = "select postgremq.release_message(%s, %s, %s)"
    db.rows(sql, claim.queue, claim.id, claim.token)


def drain(db: Connection, queue: str = "q") -> list[int]:
    """Consumes and acks all that is visible; returns the payloads in order."""
    got = []
    while claims := consume(db, queue, limit=7):
        for claim in claims:
            got.append(claim.payload)
            ack(db, claim)
    return got


def states(db: Connection, queue: str = "q") -> list[tuple[int, str, int]]:
    sql = "select message_id, status, delivery_attempts from postgremq.list_messages(%s)"
    return [(id_, status, attempts) for id_, status, attempts in db.rows(sql, queue)]


def statistics(db: Connection, queue: str | None = "q") -> tuple[Any, ...]:
    (row,) = db.rows("select * from postgremq.get_queue_statistics(%s)", queue)
    return row


def switch(db: Connection) -> None:
    """Makes the other part the current one."""
    db.value("select setval('postgremq.turn', pg_sequence_last_value('postgremq.turn') + 1)")


def rotate(db: Connection) -> None:
    """Makes the other part the current one, and works off the part that was left."""
    switch(db)
    while db.value("select postgremq.maint()"):
        pass


def maintain(db: Connection) -> None:
    """Maintenance that goes on while something is in its way."""
    for _ in range(4):
        db.value("select postgremq.maint()")


def set_limit(db: Connection, attempts: int) -> None:
    db.execute("update postgremq.queues set max_delivery_attempts = %s", [attempts])


def put_back(db: Connection, which: str = "true") -> None:
    """What an administrator does to have messages delivered again."""
    db.execute(
        "update postgremq.queue_messages set status = 'pending', vt = now(), delivery_attempts = 0"
        f" where {which}".encode()
    )


def bury(db: Connection, id_: int, queue: str = "q") -> None:
    """Calls a message dead."""
    sql = "insert into postgremq.dead_letter_queue (queue_name, message_id) values (%s, %s)"
    db.execute(sql, [queue, id_])

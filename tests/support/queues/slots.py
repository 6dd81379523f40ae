"""Builders for partitioned consumers: keyed events, slots, and workers on them."""

from typing import Any

from tests.support.queues.sql import Connection

Message = tuple[Any, ...]

TABLES = ("partition_consumer", "partition_slot_base", "subscription_base")

SLOT_OF = "coalesce(mod(mod(hashtextextended(%s, 0), %s) + %s, %s), 0)::integer"


def queue_with_slots(db: Connection, n: int = 2, **config: str) -> None:
    """A queue with the consumer c, whose n slots are all subscribed and claimed by w."""
    db.make_queue(consumers=(), **config)
    for slot in range(n):
        subscribe(db, slot, n)
        claim(db, slot)


def subscribe(db: Connection, slot: int | None, n: int | None, consumer: str = "c") -> None:
    db.value("select pgque.subscribe_slot('q', %s, %s, %s)", consumer, slot, n)


def unsubscribe(db: Connection, slot: int) -> None:
    db.value("select pgque.unsubscribe_slot('q', 'c', %s)", slot)


def claim(db: Connection, slot: int = 0, worker: str = "w", ttl: str = "30 seconds") -> Any:
    return db.value("select pgque.claim_slot('q', 'c', %s, %s, %s)", slot, worker, ttl)


def release(db: Connection, slot: int = 0, worker: str | None = "w") -> Any:
    return db.value("select pgque.release_slot('q', 'c', %s, %s)", slot, worker)


def send_keyed(db: Connection, *keyed: tuple[str | None, str]) -> list[int]:
    """Sends payloads under keys; returns the events' ids."""
    return [
        db.value("select pgque.insert_event('q', 't', %s, %s, null, null, null)", payload, key)
        for key, payload in keyed
    ]


def publish_keyed(db: Connection, *keyed: tuple[str | None, str]) -> list[int]:
    """The same, in a finished batch."""
    ids = send_keyed(db, *keyed)
    db.tick()
    return ids


def slot_of(db: Connection, key: str | None, n: int) -> int:
    return db.value(f"select {SLOT_OF}", key, n, n, n)


def receive(
    db: Connection, slot: int = 0, n: int = 2, worker: str | None = "w", most: int | None = 100
) -> list[Message]:
    """The page's messages: id, batch, type, payload, retries, time, key, and the other extras."""
    return db.rows(
        "select * from pgque.receive_partitioned('q', 'c', %s, %s, %s, %s)",
        slot,
        n,
        worker,
        most,
    )


def ack(db: Connection, slot: int = 0, n: int = 2, worker: str | None = "w") -> Any:
    return db.value("select pgque.ack_partitioned('q', 'c', %s, %s, %s)", slot, n, worker)


def nack(
    db: Connection,
    message_id: int | None,
    slot: int = 0,
    n: int = 2,
    worker: str | None = "w",
    after: str | None = "0",
) -> Any:
    return db.value(
        "select pgque.nack_partitioned('q', 'c', %s, %s, %s,"
        " row(%s, null, null, null, null, null, null, null, null, null)::pgque.message, %s)",
        slot,
        n,
        worker,
        message_id,
        after,
    )


def texts(messages: list[Message]) -> list[str]:
    """The payloads."""
    return [message[3] for message in messages]


def drain_slot(db: Connection, slot: int = 0, n: int = 2, most: int = 100) -> list[str]:
    """Receives and acks until there is nothing more; returns the payloads."""
    seen: list[str] = []
    while page := receive(db, slot, n, most=most):
        seen += texts(page)
        ack(db, slot, n)
        assert len(seen) < 1_000, "the slot delivers the same again and again"
    return seen


def statuses(db: Connection, *columns: str) -> list[tuple[Any, ...]]:
    return db.rows(
        f"select {', '.join(columns)} from pgque.partition_slot_status order by consumer, slot"
    )


def expire(db: Connection, slot: int = 0) -> None:
    """Ends the slot's lease as its time would."""
    db.execute(
        "update pgque.position_log p set lease_until = now() - interval '1 second'"
        " from pgque.slot s join pgque.subscription n on n.sub_id = s.sub_id"
        " where p.sub_id = s.sub_id and p.pos_seq = n.pos_seq and s.slot = %s",
        [slot],
    )


def left_over(db: Connection) -> dict[str, int]:
    """How many rows partitioned consumers left, by table."""
    counts = {name: db.value(f"select count(*) from pgque.{name}") for name in TABLES}
    return {name: count for name, count in counts.items() if count}


def publish_and_receive(db: Connection) -> list[Message]:
    """One event, in the page of slot 0 of 1."""
    publish_keyed(db, ("k", "a"))
    return receive(db, 0, 1)


def fail_all(db: Connection, queue: str, consumer: str, n: int) -> None:
    """Takes back all events of the slots of any consumer, for a later time."""
    for slot in range(n):
        of_slot = (queue, consumer, slot)
        db.value("select pgque.claim_slot(%s, %s, %s, 'w', '1 hour')", *of_slot)
        receive = "select msg_id from pgque.receive_partitioned(%s, %s, %s, %s, 'w', 100)"
        for (message_id,) in db.rows(receive, *of_slot, n):
            db.value(
                "select pgque.nack_partitioned(%s, %s, %s, %s, 'w', row(%s, null, null, null, null,"
                " null, null, null, null, null)::pgque.message, '1 hour')",
                *of_slot,
                n,
                message_id,
            )
        db.value("select pgque.ack_partitioned(%s, %s, %s, %s, 'w')", *of_slot, n)


def failures(db: Connection, queue: str, consumer: str) -> list[tuple[Any, ...]]:
    """What is retried or dead of the slots of any consumer."""
    return db.rows(
        "with slot as ("
        "  select b.sub_id, s.sub_consumer from pgque.partition_slot_base b"
        "  join pgque.subscription_base s on s.sub_id = b.sub_id"
        "  join pgque.queue q on q.queue_id = b.queue_id"
        "  where q.queue_name = %s and b.co_name = %s)"
        " select 'is retried', o.sub_id, r.ev_id from slot o"
        " join pgque.retry_queue r on r.ev_owner = o.sub_id union all"
        " select 'is dead', o.sub_id, d.ev_id from slot o"
        " join pgque.dead_letter d on d.dl_consumer_id = o.sub_consumer order by 1, 2, 3",
        queue,
        consumer,
    )


def consumer_with_failures(
    db: Connection, queue: str, consumer: str, n: int, **config: str
) -> list[tuple[Any, ...]]:
    """Makes a consumer beside q's c, whose slots fail; returns its failures."""
    db.make_queue(queue, consumers=(), **config)
    db.value("select pgque.subscribe_slots(%s, %s, %s)", queue, consumer, n)
    for number in range(8):
        sql = "select pgque.insert_event(%s, 't', 'x', %s, null, null, null)"
        db.value(sql, queue, f"key {number}")
    db.tick(queue)
    fail_all(db, queue, consumer, n)
    return failures(db, queue, consumer)

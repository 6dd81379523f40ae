"""Builders and questions for cooperative consumers: workers that share one consumer's cursor."""

from typing import Any

from tests.support.queues.sql import Connection


def queue_with_ticks(db: Connection, *texts: str) -> None:
    """A queue with the worker w1 of the consumer c, and one tick after each text."""
    db.make_queue(consumers=())
    register(db, "w1")
    for text in texts:
        db.send(text)
        db.tick()


def register(db: Connection, worker: str, consumer: str = "c", *, convert: bool = False) -> int:
    return db.value("select pgque.register_subconsumer('q', %s, %s, %s)", consumer, worker, convert)


def unregister(db: Connection, worker: str, handling: int | None = 0) -> int:
    return db.value("select pgque.unregister_subconsumer('q', 'c', %s, %s)", worker, handling)


def next_of(db: Connection, worker: str, dead: str | None = None, consumer: str = "c") -> Any:
    """The worker's open or next batch."""
    return db.value("select pgque.next_batch('q', %s, %s, %s)", consumer, worker, dead)


def work_off(
    db: Connection, worker: str, consumer: str = "c", *, convert: bool = False
) -> list[str]:
    """Consumes all batches that are there; returns the payloads."""
    if convert:
        register(db, worker, consumer, convert=True)
    consumed = []
    while (batch := next_of(db, worker, consumer=consumer)) is not None:
        consumed += db.payloads(batch)
        db.finish(batch)
    return consumed


def age_worker(db: Connection, worker: str, age: str = "2 hours", consumer: str = "c") -> None:
    """Makes the worker's last sign of life so old."""
    db.execute(
        "update pgque.position_log p set sub_active = now() - %s::interval"
        " from pgque.subscription s join pgque.consumer c on c.co_id = s.sub_consumer"
        " where p.sub_id = s.sub_id and p.pos_seq = s.pos_seq and c.co_name = %s",
        [age, f"{consumer}.{worker}"],
    )


def roles(db: Connection) -> dict[str, str]:
    return dict(
        db.rows(
            "select c.co_name, s.sub_role from pgque.subscription s"
            " join pgque.consumer c on c.co_id = s.sub_consumer order by 1",
        )
    )


def positions(db: Connection) -> list[tuple[Any, ...]]:
    columns = "sub_id, sub_role, sub_last_tick, sub_batch, sub_next_tick, lease_owner, lease_epoch"
    return db.rows(f"select {columns} from pgque.subscription order by sub_id")

"""Builders for dead letters."""

from tests.support.queues.sql import Connection


def give_up(
    db: Connection, *texts: str, consumer: str = "c", reason: str | None = "bad", queue: str = "q"
) -> None:
    """Sends events and makes dead letters of them."""
    db.send(*texts, queue=queue)
    db.tick(queue)
    give_up_next(db, consumer=consumer, reason=reason, queue=queue)


def give_up_next(
    db: Connection, *, consumer: str = "c", reason: str | None = "bad", queue: str = "q"
) -> None:
    batch = db.next_batch(queue, consumer)
    ids = [row[0] for row in db.events(batch)]
    db.value("select pgque.dead_letter_batch(%s, %s, %s)", batch, ids, reason)
    db.finish(batch)


def inspect(db: Connection, queue: str = "q") -> list[str]:
    return [text for (text,) in db.rows("select ev_data from pgque.dlq_inspect(%s)", queue)]

"""Builders for dead letters."""

from tests.support.queues import Connection, events, finish, next_batch, rows, send, tick, value


def give_up(
    db: Connection, *texts: str, consumer: str = "c", reason: str | None = "bad", queue: str = "q"
) -> None:
    """Sends events and makes dead letters of them."""
    send(db, *texts, queue=queue)
    tick(db, queue)
    give_up_next(db, consumer=consumer, reason=reason, queue=queue)


def give_up_next(
    db: Connection, *, consumer: str = "c", reason: str | None = "bad", queue: str = "q"
) -> None:
    batch = next_batch(db, queue, consumer)
    ids = [row[0] for row in events(db, batch)]
    value(db, "select pgque.dead_letter_batch(%s, %s, %s)", batch, ids, reason)
    finish(db, batch)


def inspect(db: Connection, queue: str = "q") -> list[str]:
    return [text for (text,) in rows(db, "select ev_data from pgque.dlq_inspect(%s)", queue)]

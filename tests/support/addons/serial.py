"""Builders and questions that the tests of the add-on qgres share."""

from tests.support.queues.sql import Connection

ROLES = ("qgres__queue_manage", "qgres__queue_insert", "qgres__queue_delete")


def make_sp(db: Connection, queue: str = "sp", consumers: tuple[str, ...] = ("c",)) -> int:
    """Creates a Serial Publisher queue with consumers; returns its id."""
    number: int = db.value("select qgres.queue__create(%s, 'SP')", queue)
    for consumer in consumers:
        db.value("select qgres.consumer__register(%s, %s)", queue, consumer)
    return number


def make_sr(db: Connection, queue: str = "sr") -> int:
    """Creates a Serial Remover queue; returns its id."""
    return db.value("select qgres.queue__create(%s, 'SR')", queue)


def publish(db: Connection, *texts: str, queue: str = "sp") -> list[int]:
    sql = 'select qgres."Publish"(%s, %s::text)'
    return [db.value(sql, queue, text) for text in texts]


def publish_many(db: Connection, count: int, queue: str = "sp") -> None:
    sql = 'select qgres."Publish"(%s, n::text) from generate_series(1, %s) n'
    db.execute(sql, [queue, count])


def consume(
    db: Connection, consumer: str = "c", limit: int | None = None, queue: str = "sp"
) -> list[tuple[int, str]]:
    """The numbers and texts that a consumer gets."""
    return db.rows(
        "select sequence_number, text from qgres.consume(%s, %s, %s)",
        queue,
        consumer,
        limit,
    )


def numbers(db: Connection, consumer: str = "c", limit: int | None = None) -> list[int]:
    return [number for number, _ in consume(db, consumer, limit)]


def add(db: Connection, *texts: str, queue: str = "sr") -> None:
    for text in texts:
        db.execute("select qgres.add(%s, %s::text)", [queue, text])


def remove(db: Connection, limit: int | None = None, queue: str = "sr") -> list[str]:
    """The texts that "Remove" gives out, sorted: their order is not promised."""
    found = db.rows('select text from qgres."Remove"(%s, %s)', queue, limit)
    return sorted(text for (text,) in found)


def rotate(db: Connection) -> int:
    """All steps of rotation that can be done now; returns how many."""
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    total = 0
    while done := db.value("select qgres.maint()"):
        total += done
    return total


def tables(db: Connection, queue_id: int, kind: str = "") -> list[str]:
    """The tables of a queue, of all kinds or of one: entry or position."""
    pattern = f"^s[pr]_{kind or '[a-z]+'}_{queue_id}_[01]$"
    found = db.rows(
        "select 'qgres.' || relname from pg_class where relkind = 'r' and relname ~ %s"
        " and relnamespace = 'qgres'::regnamespace order by 1",
        pattern,
    )
    return [name for (name,) in found]


def stored(db: Connection, queue_id: int, kind: str = "entry") -> int:
    """How many rows the tables of a queue hold, read or not."""
    return sum(db.value(f"select count(*) from {name}") for name in tables(db, queue_id, kind))

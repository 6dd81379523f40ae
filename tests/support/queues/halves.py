"""Logs that are switched to their other half, for tests of who notices."""

from tests.support.queues.sql import Connection

SIZES = """
    select pg_relation_size(format('pgque.%%s_log_0', %s::text)),
           pg_relation_size(format('pgque.%%s_log_1', %s::text))
"""


def catch_up(db: Connection, *consumers: str) -> None:
    """Moves consumers to the last tick."""
    for consumer in consumers:
        db.value("select pgque.register_consumer_at('q', %s, %s)", consumer, db.last_tick())


def compact(db: Connection) -> None:
    """Switches both logs, with more in them than is needed."""
    db.bloat_ticks(2100)
    catch_up(db, "c")
    db.bloat_positions()
    assert db.value("select pgque.maint_compact_positions()") > 0
    assert db.value("select pgque.maint_compact_ticks()") > 0


def is_one_half_empty(db: Connection, log: str) -> bool:
    ((first, second),) = db.rows(SIZES, log, log)
    return 0 in (first, second)

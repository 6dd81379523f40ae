"""What is refused, with a hint, by functions that pgq has of its own.

The others pass their arguments on to the engine: see tests/engine/test_errors_arguments.py.
"""

import psycopg
import pytest

from tests.support.queues.sql import Connection, refused

# The batch of consumer c.
BATCH = "(select sub_batch from pgque.subscription where sub_role = 'normal' and sub_batch > 0)"
RAW = "pgq.insert_event_raw({}, null, null, null, null, 't', 'x', null, null, null, null)"
# The two forms of each function of pgq_ext, with the number of arguments after the names.
EXT = {"batch_done": 1, "event_done": 2}

REFUSED = {
    "PQ001": (
        *("pgq.insert_event('nosuch', 't', 'x')", RAW.format("'nosuch'")),
        *("pgq.next_batch('nosuch', 'c')", "pgq_coop.next_batch('nosuch', 'm', 's')"),
    ),
    "PQ002": ("pgq.next_batch('q', 'nobody')",),
    "PQ003": (
        *("pgq.get_batch_events(null)", "pgq.get_batch_events(4711)"),
        *("pgq.get_batch_cursor(null, 'k', 1)", "pgq.get_batch_cursor(4711, 'k', 1, 'true')"),
    ),
    "PQ005": (
        *("pgq.insert_event(null, 't', 'x')", RAW.format("null")),
        *("pgq.next_batch(null, 'c')", "pgq.next_batch('q', null)"),
        *("pgq.unregister_consumer(null, 'c')", "pgq.unregister_consumer('q', null)"),
        *("pgq_coop.next_batch(null, 'm', 's')", "pgq_coop.next_batch('q', 'm', null)"),
        *("pgq_coop.unregister_subconsumer('q', 'm', 's', 7)", "pgq.quote_fqname(null)"),
        *("pgq.set_queue_config('q', 'ntables', '5')", "pgq.create_queue('')"),
        *("pgq.seq_getval('pg_catalog.pg_class')", "pgq.seq_getval(null)"),
        "pgq.seq_setval('pgq.event_1_tick_seq', 5)",
        *(f"pgq.get_batch_cursor({BATCH}, 'k', {count})" for count in (-1, "null")),
        *("pgq_ext.get_last_tick(null)", "pgq_ext.get_last_tick('c', null)"),
        *("pgq_ext.set_last_tick(null, 5)", "pgq_ext.set_last_tick('c', null, 5)"),
        *(
            f"pgq_ext.{verb}_{what}({arguments})"
            for verb in ("is", "set")
            for what, count in EXT.items()
            for arguments in (
                f"null{', 5' * count}",
                f"'c', null{', 5' * count}",
                f"'c', 'w'{', 5' * (count - 1)}, null",
            )
        ),
    ),
    "PQ015": ("pgq.next_batch('q', 'm')", "pgq.next_batch('q', 'm.s')"),
    "PQ016": (
        *("pgq.unregister_consumer('q', 'm.s')", "pgq_coop.next_batch('q', 'c', 's')"),
        *(
            "pgq_coop.register_subconsumer('q', 'c', 's')",
            "pgq_coop.unregister_subconsumer('q', 'm', 's', 0)",
        ),
    ),
}


@pytest.fixture
def populated(db: Connection) -> Connection:
    """A queue with an open batch of a consumer and of a subconsumer."""
    db.value("select pgq.create_queue('q')")
    db.value("select pgq.register_consumer('q', 'c')")
    db.value("select pgq_coop.register_subconsumer('q', 'm', 's')")
    db.value("select pgq.insert_event('q', 't', 'a')")
    db.tick()
    db.value("select pgq.next_batch('q', 'c')")
    db.value("select pgq_coop.next_batch('q', 'm', 's')")
    return db


def test_what_makes_no_sense_is_refused_with_a_hint(populated: Connection) -> None:
    wrong = []
    for code, calls in REFUSED.items():
        for call in calls:
            try:
                with populated.transaction(force_rollback=True):
                    populated.rows(f"select * from {call}")
                wrong.append((call, None))
            except psycopg.Error as error:
                if error.sqlstate != code or not error.diag.message_hint:
                    wrong.append((call, error.sqlstate))
    assert wrong == []


def test_the_condition_of_a_cursor_stays_in_its_statement(populated: Connection) -> None:
    batch = populated.value(f"select {BATCH}")
    with refused("42P11", "multi-query"):
        populated.rows("select * from pgq.get_batch_cursor(%s, 'k', 1, 'true); select (1')", batch)

"""Wrong arguments get an error that says what is wrong, and lose nothing."""

import pytest

from tests.support.queues import Connection, refused, rows, value
from tests.support.serial import add, make_sp, make_sr, numbers, publish, remove


@pytest.mark.parametrize(
    ("call", "sqlstate", "text"),
    [
        ("queue__create(null, 'SP')", "23502", "the name of the queue is null"),
        ("queue__create('q', null::text)", "23502", "the type of the queue is null"),
        ("queue__create('q', 'XY')", "22P02", "invalid input value for enum"),
        ("queue__get(null::text)", "P0002", 'queue "<NULL>" does not exist'),
        ("queue__get(null::int)", "P0002", "queue_id <NULL> does not exist"),
        ("queue__get_id('nowhere')", "P0002", 'queue "nowhere" does not exist'),
        ("queue__drop(null::text)", "P0002", 'queue "<NULL>" does not exist'),
        ("queue__drop(null::int)", "P0002", "queue_id <NULL> does not exist"),
        ("consumer__register(null, 'c')", "P0002", 'queue "<NULL>" does not exist'),
        ("consumer__register('sp', null)", "23502", "the name of the consumer is null"),
        (
            "consumer__drop('sp', null)",
            "P0002",
            'consumer "<NULL>" on queue "sp" is not registered',
        ),
        ("\"Publish\"(null::text, 'a')", "P0002", 'queue "<NULL>" does not exist'),
        ("\"Publish\"(null::int, 'a')", "P0002", "queue_id <NULL> does not exist"),
        ("add(null::text, 'a')", "P0002", 'queue "<NULL>" does not exist'),
        ("add(null::int, 'a')", "P0002", "queue_id <NULL> does not exist"),
        ("consume(null::text, 'c')", "P0002", 'queue "<NULL>" does not exist'),
        ("consume('sp', null)", "P0002", "consumer does not exist"),
        ("consume('sp', 'c', -1)", "2201W", "row_limit must not be negative, it is -1"),
        ('"Remove"(null::text)', "P0002", 'queue "<NULL>" does not exist'),
        ("\"Remove\"('sr', -1)", "2201W", "row_limit must not be negative, it is -1"),
        ("log_queue(null)", "P0002", 'queue "<NULL>" does not exist'),
        ("log_queue('nowhere')", "P0002", 'queue "nowhere" does not exist'),
        ("unlog_queue('nowhere')", "P0002", 'queue "nowhere" does not exist'),
        ("log_queue('sr')", "22023", "log_queue() may only be called on Serial Publisher queues"),
        ("unlog_queue('sr')", "22023", "unlog_queue() may only be called on Serial Publisher"),
    ],
)
def test_bad_arguments_are_refused(db: Connection, call: str, sqlstate: str, text: str) -> None:
    make_sp(db)
    make_sr(db)
    publish(db, "a")
    add(db, "a")
    with refused(sqlstate, text):
        rows(db, f"select qgres.{call}")
    assert (numbers(db), remove(db)) == ([1], ["a"])


def test_a_limit_of_zero_takes_nothing_and_null_takes_all(db: Connection) -> None:
    make_sp(db)
    make_sr(db)
    publish(db, "a", "b")
    add(db, "a", "b")
    assert (numbers(db, limit=0), remove(db, 0)) == ([], [])
    assert (numbers(db), remove(db)) == ([1, 2], ["a", "b"])


def test_untyped_literals_are_text(db: Connection) -> None:
    make_sp(db)
    value(db, "select qgres.\"Publish\"('sp', 'a')")
    assert rows(db, "select * from qgres.consume('sp', 'c')") == [(1, None, None, "a")]


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a;drop table x", "%s%%", "ä€", "a\nb", ""])
def test_names_are_data(db: Connection, name: str) -> None:
    make_sp(db, name, consumers=(name,))
    make_sp(db, f"{name}2")
    publish(db, name, queue=name)
    assert rows(db, "select text from qgres.consume(%s, %s)", name, name) == [(name,)]
    value(db, "select qgres.queue__drop(%s, true)::text", name)
    assert rows(db, "select queue_name from qgres.queue") == [(f"{name}2",)]

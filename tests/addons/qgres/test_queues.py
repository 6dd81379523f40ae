"""What callers of Qgres rely on: each behaviour that its own tests check, against this engine."""

import pytest

from tests.addons.conftest import begun
from tests.support.addons.serial import (
    add,
    consume,
    make_sp,
    make_sr,
    numbers,
    publish,
    remove,
    stored,
)
from tests.support.queues.sql import Connection, refused

SP, SR = "Serial Publisher", "Serial Remover"
HEX = "0xdeadbeef"
FULL = (HEX.encode(), {"key": "jsonb"}, "text")
NOTHING = (None, None, None)
PARTS = [(FULL[0], None, None), (None, FULL[1], None), (None, None, FULL[2])]
LITERALS = [f"'{HEX}'::bytea", """'{"key":"jsonb"}'::jsonb""", "'text'::text"]
# By each form of a function: four entries without and four with values.
FORMS = ["null, null, null", "null::bytea", "null::jsonb", "null::text"]
FORMS += [", ".join(LITERALS), *LITERALS]


def test_an_entry_is_made_of_named_parts(db: Connection) -> None:
    made = 'qgres.queue_entry(bytea := %s, jsonb := \'{"key": "jsonb"}\', text := %s)'
    assert db.rows(f"select ({made}).*", HEX.encode(), "text") == [FULL]
    assert db.rows("select (qgres.queue_entry()).*") == [NOTHING]


def test_types_are_read_in_any_case(db: Connection) -> None:
    for name, kind in (("SP", SP), (SP, SP), ("SR", SR), (SR, SR)):
        for spelled in (name, name.lower(), name.upper()):
            assert db.value("select qgres._queue_type__sanitize(%s)::text", spelled) == kind
    assert db.value("select qgres._queue_type__sanitize(null)") is None


def test_queues_are_created_and_found_by_id_and_by_name_in_any_case(db: Connection) -> None:
    db.value("select qgres.queue__create('A', 'SP')")
    db.value("select qgres.queue__create('B', 'Serial Remover'::qgres.queue_type)")
    listed = db.rows("select * from qgres.queue order by 1")
    assert [row[1:] for row in listed] == [("A", SP), ("B", SR)]
    for row in listed:
        assert db.rows("select * from qgres.queue__get(%s::int)", row[0]) == [row]
        assert db.rows("select * from qgres.queue__get(%s)", row[1].lower()) == [row]
        assert db.value("select qgres.queue__get_id(%s)", row[1].lower()) == row[0]
    with refused("23505", 'queue "a" already exists', "case-insensitive"):
        db.value("select qgres.queue__create('a', 'sr')")


def test_wrong_calls_are_refused_and_lose_nothing(db: Connection) -> None:
    make_sp(db)
    make_sr(db)
    publish(db, "a")
    add(db, "a")
    unknown = {"'nowhere'": 'queue "nowhere"', "null::text": 'queue "<NULL>"'}
    unknown |= {"-999999": "queue_id -999999", "null::int": "queue_id <NULL>"}
    for queue, named in unknown.items():
        calls = ["queue__get({})", "queue__drop({})", "consume({}, 'c')", '"Remove"({})']
        calls += ["\"Publish\"({}, 'a'::text)", "add({}, 'a'::text)"]
        if queue[0] in "'n" and queue != "null::int":
            calls += ["queue__get_id({})", "consumer__register({}, 'c')", "consumer__drop({}, 'c')"]
            calls += ["log_queue({})", "unlog_queue({})"]
        if queue == "-999999":
            calls += ['"_Publish"({}, qgres.queue_entry())', "_add({}, qgres.queue_entry())"]
        for call in calls:
            with refused("P0002", f"{named} does not exist"):
                db.rows(f"select qgres.{call.format(queue)}")
    for call, sqlstate, *words in (
        ("queue__create(null, 'SP')", "23502", "the name of the queue is null"),
        ("queue__create('q', null::text)", "23502", "the type of the queue is null"),
        ("queue__create('q', 'XY')", "22P02", "invalid input value for enum"),
        ("consumer__register('sp', null)", "23502", "the name of the consumer is null"),
        ("consumer__register('sp', 'C')", "23505", '"C" on queue "sp" already', "case-insensitive"),
        ("consumer__register('sr', 'c')", "22023", 'registered on "Serial Publisher" queues'),
        ("consumer__drop('sr', 'c')", "22023", 'dropped on "Serial Publisher" queues'),
        (
            "consumer__drop('sp', null)",
            "P0002",
            'consumer "<NULL>" on queue "sp" is not registered',
        ),
        ("consume('sp', null)", "P0002", "consumer does not exist"),
        ("consume('sp', 'x')", "P0002", "consumer does not exist", "consumer__register"),
        ("consume('sp', 'c', -1)", "2201W", "row_limit must not be negative, it is -1"),
        ("consume('sr', 'c')", "22023", "consume() may only", "Serial Publisher", '"Remove"()'),
        ("\"Remove\"('sr', -1)", "2201W", "row_limit must not be negative, it is -1"),
        ("\"Remove\"('sp')", "22023", "may only be called on Serial Remover queues", "consume()"),
        ("\"Publish\"('sr', 'a')", "22023", '"Publish"() may only', "Serial Publisher", "add()"),
        ("add('sp', 'a')", "P0001", "only valid for Serial Remover queues", '"Publish"()'),
        ("log_queue('sr')", "22023", "log_queue() may only be called on Serial Publisher queues"),
        ("unlog_queue('sr')", "22023", "unlog_queue() may only be called on Serial Publisher"),
    ):
        with refused(sqlstate, *words):
            db.rows(f"select qgres.{call}")
    assert (numbers(db), remove(db)) == ([1], ["a"])


def test_a_limit_of_zero_takes_nothing_and_null_takes_all(db: Connection) -> None:
    make_sp(db)
    make_sr(db)
    publish(db, "a", "b")
    add(db, "a", "b")
    assert (numbers(db, limit=0), remove(db, 0)) == ([], [])
    assert (numbers(db), remove(db)) == ([1, 2], ["a", "b"])
    db.value("select qgres.\"Publish\"('sp', 'untyped')")
    assert db.rows("select * from qgres.consume('sp', 'c')") == [(3, None, None, "untyped")]


def test_names_are_data(db: Connection) -> None:
    for name in ["a'b", 'a"b', "a;drop table x", "%s%%", "ä€", "a\nb", ""]:
        make_sp(db, name, consumers=(name,))
        make_sp(db, f"{name}2")
        publish(db, name, queue=name)
        assert db.rows("select text from qgres.consume(%s, %s)", name, name) == [(name,)]
        db.value("select qgres.queue__drop(%s, true)::text", name)
        assert db.rows("select queue_name from qgres.queue") == [(f"{name}2",)]
        db.value("select qgres.queue__drop(%s, true)::text", f"{name}2")


@pytest.mark.parametrize("queue", ["'sp'", "qgres.queue__get_id('sp')"])
def test_consumers_get_what_was_published_since_they_registered(db: Connection, queue: str) -> None:
    make_sp(db, consumers=("first",))
    sent = []
    for number, form in enumerate(FORMS):
        if number == 4:
            db.value("select qgres.consumer__register('sp', 'second')::text")
        sent.append(db.value(f'select qgres."Publish"({queue}, {form})'))
    db.value("select qgres.consumer__register('sp', 'third')::text")
    assert sent == list(range(1, 9))
    call = f"select * from qgres.consume({queue}, %s, %s)"
    assert db.rows(call, "FIRST", 4) == [(nr, *NOTHING) for nr in range(1, 5)]
    full = [(nr, *parts) for nr, parts in enumerate([FULL, *PARTS], 5)]
    assert db.rows(call, "first", None) == full
    assert db.rows(f"select * from qgres.consume({queue}, 'second')") == full
    for consumer in ("first", "second", "third"):
        assert db.rows(call, consumer, None) == []
    publish(db, "a")
    assert [numbers(db, each) for each in ("first", "second", "third")] == [[9]] * 3
    db.value("select qgres.consumer__drop('SP', 'THIRD')::text")
    with refused("P0002", "consumer does not exist"):
        consume(db, "third")
    with refused("P0002", 'consumer "third" on queue "sp" is not registered'):
        db.value("select qgres.consumer__drop('sp', 'third')")
    assert consume(db, "first") == []


@pytest.mark.parametrize("queue", ["'sr'", "qgres.queue__get_id('sr')"])
def test_removed_entries_are_those_that_were_added(db: Connection, queue: str) -> None:
    make_sr(db)
    for form in FORMS:
        db.execute(f"select qgres.add({queue}, {form})".encode())
    first = db.rows(f'select * from qgres."Remove"({queue}, 2)')
    rest = db.rows(f'select * from qgres."Remove"({queue})')
    expected = [NOTHING] * 4 + [FULL, *PARTS]
    assert len(first) == 2
    assert sorted([*first, *rest], key=repr) == sorted(expected, key=repr)
    assert db.rows(f'select * from qgres."Remove"({queue})') == []


def test_an_empty_queue_is_dropped(db: Connection) -> None:
    for how in ("", ", true", ", false"):
        make_sp(db)
        make_sr(db)
        publish(db, "a")
        add(db, "a")
        consume(db)
        remove(db)
        db.value("select qgres.consumer__drop('sp', 'c')::text")
        for queue in ("SP", "SR"):
            db.value(f"select qgres.queue__drop('{queue}'{how})::text")
        assert db.rows("select * from qgres.queue") == []
    assert db.value("select count(*) from pg_tables where tablename ~ '^s[pr]_'") == 0


def test_a_queue_with_consumers_or_entries_is_dropped_by_force_alone(db: Connection) -> None:
    number = make_sp(db)
    make_sr(db)
    add(db, "a")
    with refused("23503", 'queue "sp" still has consumers', "qgres.queue__drop('sp', true)"):
        db.value("select qgres.queue__drop('sp')")
    publish(db, "a", "b")
    numbers(db, limit=1)
    db.value("select qgres.consumer__drop('sp', 'c')::text")
    with refused("23503", 'queue "sp" still has entries'):
        db.value("select qgres.queue__drop(%s::int)", number)
    with refused("23503", 'queue "sr" still has entries'):
        db.value("select qgres.queue__drop('sr')")
    assert stored(db, number) == 2
    for queue in ("sp", "sr"):
        db.value("select qgres.queue__drop(%s, true)::text", queue)
    assert db.rows("select * from qgres.queue") == []


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_one_transaction_sees_what_it_sends(db: Connection, isolation: str) -> None:
    make_sp(db)
    make_sr(db)
    begun(db, isolation)
    assert publish(db, "a", "b", "c") == [1, 2, 3]
    assert consume(db, limit=2) == [(1, "a"), (2, "b")]
    add(db, "a", "b", "c")
    taken = remove(db, 1) + remove(db, 1)
    add(db, "d")
    taken += remove(db, 1)
    db.execute("commit")
    assert sorted(taken) == ["a", "b", "c"]
    assert (consume(db), remove(db)) == ([(3, "c")], ["d"])

"""What callers of Qgres rely on: each behaviour that its own tests check, against this engine."""

import pytest

from tests.support.queues import Connection, refused, rows, value
from tests.support.serial import add, consume, make_sp, make_sr, numbers, publish, remove, stored

SP, SR = "Serial Publisher", "Serial Remover"
HEX = "0xdeadbeef"
FULL = (HEX.encode(), {"key": "jsonb"}, "text")
PARTS = [(FULL[0], None, None), (None, FULL[1], None), (None, None, FULL[2])]
LITERALS = [f"'{HEX}'::bytea", """'{"key":"jsonb"}'::jsonb""", "'text'::text"]
NULLS = ["null, null, null", "null::bytea", "null::jsonb", "null::text"]


def fill(db: Connection, call: str) -> None:
    """Sends four entries without and four with values, by each form of a function."""
    for arguments in [*NULLS, ", ".join(LITERALS), *LITERALS]:
        db.execute(f"select qgres.{call}, {arguments})".encode())


def test_an_entry_is_made_of_named_parts(db: Connection) -> None:
    made = 'qgres.queue_entry(bytea := %s, jsonb := \'{"key": "jsonb"}\', text := %s)'
    assert rows(db, f"select ({made}).*", HEX.encode(), "text") == [FULL]


def test_an_entry_without_parts_has_nulls(db: Connection) -> None:
    assert rows(db, "select (qgres.queue_entry()).*") == [(None, None, None)]


@pytest.mark.parametrize("spell", [str, str.lower, str.upper])
@pytest.mark.parametrize(
    ("name", "kind"), [("SP", SP), ("Serial Publisher", SP), ("SR", SR), ("Serial Remover", SR)]
)
def test_types_are_read_in_any_case(db: Connection, name: str, kind: str, spell: type[str]) -> None:
    assert value(db, "select qgres._queue_type__sanitize(%s)::text", spell(name)) == kind


def test_no_type_is_no_type(db: Connection) -> None:
    assert value(db, "select qgres._queue_type__sanitize(null)") is None


def test_queues_are_created_by_short_and_long_type(db: Connection) -> None:
    by_text = value(db, "select qgres.queue__create('a', 'SP')")
    by_type = value(db, "select qgres.queue__create('b', 'Serial Remover'::qgres.queue_type)")
    assert rows(db, "select * from qgres.queue order by 1") == [
        (by_text, "a", SP),
        (by_type, "b", SR),
    ]


def test_a_second_queue_of_a_name_in_another_case_is_refused(db: Connection) -> None:
    make_sp(db, "Test SP queue")
    with refused("23505", 'queue "test sp queue" already exists', "case-insensitive"):
        value(db, "select qgres.queue__create('test sp queue', 'sr')")


@pytest.mark.parametrize("kind", ["SP", "SR"])
def test_a_queue_is_found_by_id_and_by_name(db: Connection, kind: str) -> None:
    number = value(db, "select qgres.queue__create('Q', %s)", kind)
    (listed,) = rows(db, "select * from qgres.queue")
    assert rows(db, "select * from qgres.queue__get(%s::int)", number) == [listed]
    assert rows(db, "select * from qgres.queue__get('q')") == [listed]
    assert value(db, "select qgres.queue__get_id('q')") == number


def test_two_consumers_are_registered(db: Connection) -> None:
    make_sp(db, consumers=("one", "two"))
    publish(db, "a")
    assert (numbers(db, "one"), numbers(db, "TWO")) == ([1], [1])


def test_a_second_consumer_of_a_name_is_refused(db: Connection) -> None:
    make_sp(db, consumers=("one",))
    with refused("23505", 'consumer "ONE" on queue "sp" already exists', "case-insensitive"):
        value(db, "select qgres.consumer__register('sp', 'ONE')")


@pytest.mark.parametrize("call", ["register", "drop"])
def test_consumers_of_an_unknown_queue_are_refused(db: Connection, call: str) -> None:
    with refused("P0002", 'queue "nowhere" does not exist'):
        value(db, f"select qgres.consumer__{call}('nowhere', 'c')")


@pytest.mark.parametrize(("call", "done"), [("register", "registered"), ("drop", "dropped")])
def test_a_serial_remover_queue_has_no_consumers(db: Connection, call: str, done: str) -> None:
    make_sr(db)
    with refused("22023", f'consumers may only be {done} on "Serial Publisher" queues'):
        value(db, f"select qgres.consumer__{call}('sr', 'c')")


def test_a_consumer_is_dropped(db: Connection) -> None:
    make_sp(db)
    value(db, "select qgres.consumer__drop('SP', 'C')::text")
    with refused("P0002", "consumer does not exist"):
        consume(db)
    with refused("P0002", 'consumer "c" on queue "sp" is not registered'):
        value(db, "select qgres.consumer__drop('sp', 'c')")


@pytest.mark.parametrize("function", ['"_Publish"', "_add"])
def test_the_inner_functions_refuse_an_unknown_id(db: Connection, function: str) -> None:
    with refused("P0002", "queue_id -999999 does not exist"):
        value(db, f"select qgres.{function}(-999999, qgres.queue_entry())")


@pytest.mark.parametrize("function", ['"Publish"', "add"])
def test_an_unknown_queue_is_refused(db: Connection, function: str) -> None:
    with refused("P0002", "queue_id -999999 does not exist"):
        value(db, f"select qgres.{function}(-999999, null::text)")
    with refused("P0002", 'queue "nowhere" does not exist'):
        value(db, f"select qgres.{function}('nowhere', null::text)")


@pytest.mark.parametrize("queue", ["'sp'", "qgres.queue__get_id('sp')"])
def test_each_form_of_publish_returns_the_next_number(db: Connection, queue: str) -> None:
    make_sp(db)
    sent = [
        value(db, f'select qgres."Publish"({queue}, {arguments})')
        for arguments in [*NULLS, ", ".join(LITERALS), *LITERALS]
    ]
    assert sent == list(range(1, 9))


@pytest.mark.parametrize("queue", ["'sp'", "qgres.queue__get_id('sp')"])
def test_consumers_get_what_was_published_since_they_registered(db: Connection, queue: str) -> None:
    make_sp(db, consumers=("first",))
    for arguments in NULLS:
        value(db, f'select qgres."Publish"({queue}, {arguments})')
    value(db, "select qgres.consumer__register('sp', 'second')::text")
    for arguments in [", ".join(LITERALS), *LITERALS]:
        value(db, f'select qgres."Publish"({queue}, {arguments})')
    value(db, "select qgres.consumer__register('sp', 'third')::text")

    call = f"select * from qgres.consume({queue}, %s, %s)"
    assert rows(db, call, "first", 4) == [(nr, None, None, None) for nr in range(1, 5)]
    full = [(nr, *parts) for nr, parts in enumerate([FULL, *PARTS], 5)]
    assert rows(db, call, "first", None) == full
    assert rows(db, f"select * from qgres.consume({queue}, 'second')") == full
    for consumer in ("first", "second", "third"):
        assert rows(db, call, consumer, None) == []
    more = publish(db, *(str(nr) for nr in range(1, 11)))
    assert more == list(range(9, 19))
    expected = [(nr + 8, str(nr)) for nr in range(1, 11)]
    assert (consume(db, "first"), consume(db, "second")) == (expected, expected)
    value(db, "select qgres.consumer__drop('sp', 'third')::text")
    assert consume(db, "first") == []


def test_consuming_from_nowhere_is_refused(db: Connection) -> None:
    make_sr(db)
    make_sp(db)
    with refused("P0002", "queue_id -999999 does not exist"):
        rows(db, "select qgres.consume(-999999, 'c')")
    with refused("P0002", 'queue "nowhere" does not exist'):
        rows(db, "select qgres.consume('nowhere', 'c')")
    with refused("22023", "consume() may only be called on Serial Publisher queues", '"Remove"()'):
        rows(db, "select qgres.consume('sr', 'c')")
    with refused("P0002", "consumer does not exist", "consumer__register"):
        rows(db, "select qgres.consume('sp', 'nobody')")


@pytest.mark.parametrize("queue", ["'sr'", "qgres.queue__get_id('sr')"])
def test_removed_entries_are_those_that_were_added(db: Connection, queue: str) -> None:
    make_sr(db)
    fill(db, f"add({queue}")
    first = rows(db, f'select * from qgres."Remove"({queue}, 2)')
    rest = rows(db, f'select * from qgres."Remove"({queue})')
    expected = [(None, None, None)] * 4 + [FULL, *PARTS]
    assert len(first) == 2
    assert sorted([*first, *rest], key=repr) == sorted(expected, key=repr)
    assert rows(db, f'select * from qgres."Remove"({queue})') == []


def test_removing_from_nowhere_is_refused(db: Connection) -> None:
    with refused("P0002", "queue_id -999999 does not exist"):
        rows(db, 'select qgres."Remove"(-999999)')
    with refused("P0002", 'queue "nowhere" does not exist'):
        rows(db, "select qgres.\"Remove\"('nowhere')")


def test_calls_on_a_queue_of_the_other_type_are_refused(db: Connection) -> None:
    make_sp(db)
    make_sr(db)
    with refused("22023", '"Publish"() may only be called on Serial Publisher queues', "add()"):
        publish(db, "a", queue="sr")
    with refused("P0001", "only valid for Serial Remover queues", '"Publish"()'):
        add(db, "a", queue="sp")
    with refused("22023", "consume() may only be called on Serial Remover queues", "consume()"):
        remove(db, queue="sp")


def test_dropping_an_unknown_queue_is_refused(db: Connection) -> None:
    with refused("P0002", "queue_id -999999 does not exist"):
        value(db, "select qgres.queue__drop(-999999)")
    with refused("P0002", 'queue "nowhere" does not exist'):
        value(db, "select qgres.queue__drop('nowhere')")


@pytest.mark.parametrize("force", [True, False])
def test_an_empty_queue_is_dropped(db: Connection, force: bool) -> None:
    make_sp(db, consumers=())
    make_sr(db)
    for queue in ("SP", "SR"):
        value(db, "select qgres.queue__drop(%s, %s)::text", queue, force)
    assert rows(db, "select * from qgres.queue") == []
    assert value(db, "select count(*) from pg_tables where tablename ~ '^s[pr]_'") == 0


def test_a_queue_with_consumers_or_entries_is_dropped_by_force_alone(db: Connection) -> None:
    number = make_sp(db)
    make_sr(db)
    add(db, "a")
    with refused("23503", 'queue "sp" still has consumers', "qgres.queue__drop('sp', true)"):
        value(db, "select qgres.queue__drop('sp')")
    publish(db, "a", "b")
    numbers(db, limit=1)
    value(db, "select qgres.consumer__drop('sp', 'c')::text")
    with refused("23503", 'queue "sp" still has entries'):
        value(db, "select qgres.queue__drop(%s::int)", number)
    with refused("23503", 'queue "sr" still has entries'):
        value(db, "select qgres.queue__drop('sr')")
    assert stored(db, number) == 2
    for queue in ("sp", "sr"):
        value(db, "select qgres.queue__drop(%s, true)::text", queue)
    assert rows(db, "select * from qgres.queue") == []


def test_a_queue_that_was_read_to_its_end_is_dropped(db: Connection) -> None:
    make_sp(db)
    make_sr(db)
    publish(db, "a")
    add(db, "a")
    consume(db)
    remove(db)
    value(db, "select qgres.consumer__drop('sp', 'c')::text")
    value(db, "select qgres.queue__drop('sp')::text")
    value(db, "select qgres.queue__drop('sr')::text")
    assert rows(db, "select * from qgres.queue") == []


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_one_transaction_sees_what_it_sends(db: Connection, isolation: str) -> None:
    make_sp(db)
    make_sr(db)
    with db.transaction():
        db.execute(f"set transaction isolation level {isolation}".encode())
        assert publish(db, "a", "b", "c") == [1, 2, 3]
        assert consume(db, limit=2) == [(1, "a"), (2, "b")]
        add(db, "a", "b", "c")
        taken = [remove(db, 1), remove(db, 1)]
        add(db, "d")
        taken += [remove(db, 1)]
    assert sorted(text for (text,) in taken) == ["a", "b", "c"]
    assert (consume(db), remove(db)) == ([(3, "c")], ["d"])

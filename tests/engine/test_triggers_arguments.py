"""What can be passed in CREATE TRIGGER, and what is said about anything else."""

import pytest

from tests.support.queues.sql import Connection, refused
from tests.support.queues.triggers import Event, attach, events_of

INSERT = "insert into t values (1, 'one', 'x')"

# All three read their arguments by the same functions, but an update differs for sqltriga.
pytestmark = pytest.mark.parametrize("function", ["logutriga", "sqltriga"])


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue()
    db.execute("create table t (id int primary key, a text, b text)")


def test_expressions_fill_the_fields(db: Connection, function: str) -> None:
    attach(
        db,
        function,
        "ev_type=a || '-type'",
        "ev_data=upper(a)",
        "ev_extra1=(id+3)::text",
        "ev_extra2=id",
        "ev_extra3=$$3'3$$",
        "ev_extra4=null",
    )
    assert events_of(db, INSERT, "update t set a = 'two'", "delete from t") == [
        Event("one-type", "ONE", "4", "1", "3'3", None),
        Event("two-type", "TWO", "4", "1", "3'3", None),
        Event("two-type", "TWO", "4", "1", "3'3", None),
    ]


OWN_COLUMNS = (
    "create table own (id int primary key, a text, _pgq_ev_type text, _pgq_ev_data text,"
    " _pgq_ev_extra1 text, _pgq_ev_extra2 int, _pgq_ev_extra3 text, _pgq_ev_extra4 text)"
)


def test_columns_of_a_field_s_name_fill_it(db: Connection, function: str) -> None:
    db.execute(OWN_COLUMNS)
    attach(db, function, "backup", "ignore=a", "ev_extra3='expression'", table="own")
    found = events_of(
        db,
        "insert into own values (1, 'x', 't', 'd', 'e1', 2, 'e3', 'e4')",
        "update own set _pgq_ev_extra4 = null, _pgq_ev_type = 'u', a = 'y'",  # ignored
        "update own set _pgq_ev_extra4 = 'new'",  # ignored
        "delete from own",
    )
    assert found == [
        Event("t", "d", "e1", "2", "expression", "e4"),
        Event("u", "d", "e1", "2", "expression", "new"),
    ]


def test_columns_of_fields_are_printed_as_their_types_print_whatever_the_session_has_set(
    db: Connection, function: str
) -> None:
    db.execute(
        "create table own (id int primary key, _pgq_ev_type bool, _pgq_ev_data timestamp,"
        " _pgq_ev_extra1 float8, _pgq_ev_extra2 interval, _pgq_ev_extra3 char(3),"
        " _pgq_ev_extra4 inet)"
    )
    attach(db, function, table="own")
    db.execute("set datestyle = german")
    db.execute("set intervalstyle = sql_standard")
    db.execute("set extra_float_digits = 0")
    found = events_of(
        db,
        "insert into own values (1, true, '2026-01-31', 0.1::float8 + 0.2, '1 day', 'a', '::1')",
    )
    assert found == [
        Event("t", "2026-01-31 00:00:00", "0.30000000000000004", "1 day", "a  ", "::1")
    ]


def test_columns_of_fields_are_left_out_of_the_row(db: Connection, function: str) -> None:
    db.execute("alter table t add _pgq_ev_extra3 text default 'routed'")
    attach(db, function, "backup")
    events = events_of(db, INSERT, "update t set a = 'two'")
    assert [event.extra3 for event in events] == ["routed", "routed"]
    assert not any("routed" in f"{event.data}{event.extra2}" for event in events)
    db.execute("alter table t add _pgq_ev_time timestamptz")
    with refused("PQ005", "_pgq_ev_time", "_pgq_ev_extra4"):
        db.execute("insert into t values (2)")


def test_when_decides_by_the_row_before_anything_else(db: Connection, function: str) -> None:
    attach(db, function, "when=b = 'foo' and id > 1", "ev_data=id", "ev_extra3=1 / (id - 1)")
    found = events_of(db, "insert into t values (1, 'a', 'foo'), (2, 'a', 'foo'), (3, 'a', null)")
    assert [event.data for event in found] == ["2"]


def test_expressions_are_the_callers(db: Connection, function: str) -> None:
    """With a comment at the end, functions of his path, and his errors."""
    db.execute("create schema app")
    db.execute("create function app.label(text) returns text language sql as 'select $1 || 1'")
    attach(db, function, "when=true -- always", "ev_extra3=label(a) -- the name", "ev_type=null")
    db.execute("set search_path = app, public")
    ((event),) = events_of(db, INSERT)
    assert (event.extra3, event.type) == ("one1", None)
    db.execute("reset search_path")
    with refused("42883", "label"):
        db.execute("insert into t values (2)")
    attach(db, function, "when=a", name="earlier")
    with refused("42804", "boolean"):
        db.execute("insert into t values (2)")
    assert len(db.rows("select * from t")) == 1


# What is passed, and words of the error.
REFUSED = [
    *(
        ([argument], [argument.strip() or "''", "ev_extra1=EXPR"])
        for argument in (
            *("foo", "foo=bar", "Backup", "SKIP=yes", "when=", "pkey= ", "", "ev_extra5=1"),
            "ev_id=1",
        )
    ),
    (["ignore=a", "ignore=b"], ["argument 'ignore' twice"]),
    (["ignore=a,nope"], ["'nope'", "id, a, b"]),
    (["pkey=nope"], ["'nope'", "id, a, b"]),
    (["SKIP"], ["after INSERT"]),
]


def test_unknown_arguments_and_columns_are_refused(db: Connection, function: str) -> None:
    for arguments, words in REFUSED:
        attach(db, function, *arguments)
        with refused("PQ005", "trg", "public.t", *words):
            db.execute(INSERT.encode())
        db.execute("drop trigger trg on t")


def test_a_queue_that_takes_no_event_refuses_the_change(db: Connection, function: str) -> None:
    db.execute(f"create trigger trg before insert on t for each row"
               f" execute function pgque.{function}()".encode())  # fmt: skip
    with refused("PQ005", "trg", "public.t", "no queue"):
        db.execute(INSERT.encode())
    db.execute("drop trigger trg on t")
    attach(db, function, queue="nowhere")
    with refused("PQ001", "nowhere"):
        db.execute(INSERT.encode())
    db.execute("drop trigger trg on t")
    attach(db, function)
    db.value("select pgque.set_queue_config('q', 'disable_insert', 'true')")
    with refused("PQ006"):
        db.execute(INSERT.encode())
    assert db.rows("select * from t") == []


def test_a_trigger_for_each_statement_is_refused(db: Connection, function: str) -> None:
    attach(db, function, each="statement")
    for statement in (INSERT, "update t set a = a", "delete from t"):
        with refused("PQ005", "trg", "for each row"):
            db.execute(statement.encode())


def test_truncate_has_no_row_to_show_or_skip(db: Connection, function: str) -> None:
    for argument in ("backup", "when=true", "ev_type='x'"):
        attach(db, function, argument, ops="truncate", each="statement")
        with refused("PQ005", "TRUNCATE"):
            db.execute("truncate t")
        db.execute("drop trigger trg on t")
    attach(db, function, "SKIP", when="before", ops="truncate", each="statement")
    with refused("PQ005", "before TRUNCATE"):
        db.execute("truncate t")


def test_deny_refuses_every_change(db: Connection, function: str) -> None:
    db.execute(INSERT.encode())
    attach(db, function, "deny", "when=false", queue="nowhere")
    attach(db, function, "deny", ops="truncate", each="statement", name="trunc")
    for statement in (
        "insert into t values (2)",
        "update t set a = 'c'",
        "delete from t",
        "truncate t",
    ):
        with refused("PQ014", "public.t", statement.split()[0].upper()):
            db.execute(statement.encode())
    assert len(db.rows("select * from t")) == 1


def test_ignored_columns_are_not_shown_and_make_no_event(db: Connection, function: str) -> None:
    attach(db, function, "ignore=a, b")
    assert "one" not in (events_of(db, INSERT)[0].data or "")
    db.execute("drop trigger trg on t")
    attach(db, function, "ignore=b")
    assert events_of(db, "update t set b = 'y'") == []
    assert len(events_of(db, "update t set a = 'two', b = 'z'")) == 1
    assert len(events_of(db, "update t set b = b")) == 1
    db.execute("drop trigger trg on t")
    attach(db, function)
    assert len(events_of(db, "update t set a = a")) == 1


def test_skip_keeps_the_row_and_heeds_when(db: Connection, function: str) -> None:
    db.execute(INSERT.encode())
    for word in ("SKIP", "skip"):
        attach(db, function, word, "when=true", when="before")
        for statement in ("insert into t values (2)", "update t set a = 'c'", "delete from t"):
            assert db.execute(statement.encode()).rowcount == 0
        assert len(events_of(db)) == 3
        db.execute("drop trigger trg on t")
    attach(db, function, "skip", "when=false", when="before")
    assert events_of(db, "insert into t values (2)") == []
    assert db.rows("select * from t") == [(1, "one", "x")]


def test_before_triggers_see_changes_and_let_them_through(db: Connection, function: str) -> None:
    db.execute(
        "create function stamp() returns trigger language plpgsql as"
        " $$ begin new.a := 'stamped'; return new; end $$"
    )
    db.execute("create trigger a before insert on t for each row execute function stamp()")
    attach(db, function, when="before", name="b")
    (event,) = events_of(db, INSERT)
    assert "stamped" in (event.data or "")
    assert db.value("select a from t") == "stamped"
    assert len(events_of(db, "update t set a = 'two'")) == 1
    assert db.value("select a from t") == "two"
    assert len(events_of(db, "delete from t")) == 1
    assert db.rows("select * from t") == []

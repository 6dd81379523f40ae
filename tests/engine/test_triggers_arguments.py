"""What can be passed in CREATE TRIGGER, and what is said about anything else."""

import pytest

from tests.support.queues import Connection, make_queue, refused, rows, value
from tests.support.triggers import TRIGGERS, Event, attach, take_events

INSERT = "insert into t values (1, 'one', 'x')"


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    make_queue(db)
    db.execute("create table t (id int primary key, a text, b text)")


def fire(db: Connection, function: str, *arguments: str, **options: str) -> list[Event]:
    """The events of an insert; the trigger is made new."""
    db.execute("drop trigger if exists trg on t")
    attach(db, function, *arguments, **options)
    db.execute(INSERT.encode())
    db.execute("delete from t")
    return take_events(db)


@pytest.mark.parametrize("function", TRIGGERS)
class TestEveryTrigger:
    def test_expressions_fill_the_fields(self, db: Connection, function: str) -> None:
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
        db.execute(INSERT.encode())
        db.execute("update t set a = 'two'")
        db.execute("delete from t")
        assert take_events(db) == [
            Event("one-type", "ONE", "4", "1", "3'3", None),
            Event("two-type", "TWO", "4", "1", "3'3", None),
            Event("two-type", "TWO", "4", "1", "3'3", None),
        ]

    def test_columns_of_the_table_fill_the_fields(self, db: Connection, function: str) -> None:
        db.execute(
            "alter table t add _pgq_ev_type text default 'my_type', add _pgq_ev_data text"
            " default 'd', add _pgq_ev_extra1 text default 'e1', add _pgq_ev_extra2 text"
            " default 'e2', add _pgq_ev_extra3 text, add _pgq_ev_extra4 text default 'e4'"
        )
        attach(db, function)
        db.execute(INSERT.encode())
        assert take_events(db) == [Event("my_type", "d", "e1", "e2", None, "e4")]

    def test_an_expression_wins_over_a_column(self, db: Connection, function: str) -> None:
        db.execute("alter table t add _pgq_ev_extra3 text default 'column'")
        attach(db, function, "ev_extra3='argument'")
        db.execute(INSERT.encode())
        assert take_events(db)[0].extra3 == "argument"

    def test_an_unknown_column_of_that_kind_is_refused(self, db: Connection, function: str) -> None:
        db.execute("alter table t add _pgq_ev_extra5 text")
        attach(db, function)
        with refused("PQ005", "trg", "public.t", "_pgq_ev_extra5", "_pgq_ev_extra4"):
            db.execute(INSERT.encode())

    def test_when_decides_by_the_row(self, db: Connection, function: str) -> None:
        attach(db, function, "when=b = 'foo'", "ev_data=id")
        db.execute("insert into t values (1, 'a', 'bar'), (2, 'a', 'foo'), (3, 'a', null)")
        assert [event.data for event in take_events(db)] == ["2"]

    def test_other_expressions_are_not_computed_where_when_is_false(
        self, db: Connection, function: str
    ) -> None:
        attach(db, function, "when=id > 1", "ev_extra3=1 / (id - 1)")
        db.execute(INSERT.encode())
        assert take_events(db) == []

    def test_a_comment_in_an_expression_ends_with_it(self, db: Connection, function: str) -> None:
        attach(db, function, "when=true -- always", "ev_extra3=a -- the name")
        db.execute(INSERT.encode())
        assert take_events(db)[0].extra3 == "one"

    def test_expressions_find_functions_of_the_callers_search_path(
        self, db: Connection, function: str
    ) -> None:
        db.execute("create schema app")
        db.execute("create function app.label(text) returns text language sql as 'select $1 || 1'")
        attach(db, function, "ev_extra3=label(a)")
        db.execute("set search_path = app, public")
        db.execute(INSERT.encode())
        assert take_events(db)[0].extra3 == "one1"

    def test_an_error_in_an_expression_is_the_writers(self, db: Connection, function: str) -> None:
        attach(db, function, "ev_extra3=nope")
        with refused("42703", "nope"):
            db.execute(INSERT.encode())
        assert rows(db, "select * from t") == []

    @pytest.mark.parametrize(
        ("argument", "word"),
        [
            ("foo", "foo"),
            ("foo=bar", "foo=bar"),
            ("Backup", "Backup"),
            ("SKIP=yes", "SKIP=yes"),
            ("when=", "when="),
            ("pkey= ", "pkey="),
            ("", "''"),
            ("ev_extra5=1", "ev_extra5"),
            ("ev_id=1", "ev_id"),
        ],
    )
    def test_an_unknown_argument_is_refused(
        self, db: Connection, function: str, argument: str, word: str
    ) -> None:
        attach(db, function, argument)
        with refused("PQ005", "trg", "public.t", word, "ev_extra1=EXPR"):
            db.execute(INSERT.encode())

    def test_an_argument_twice_is_refused(self, db: Connection, function: str) -> None:
        attach(db, function, "ignore=a", "ignore=b")
        with refused("PQ005", "trg", "ignore", "twice"):
            db.execute(INSERT.encode())

    @pytest.mark.parametrize("argument", ["ignore=a,nope", "pkey=nope"])
    def test_an_unknown_column_is_refused(
        self, db: Connection, function: str, argument: str
    ) -> None:
        attach(db, function, argument)
        with refused("PQ005", "trg", "'nope'", "id, a, b"):
            db.execute(INSERT.encode())

    def test_a_trigger_without_a_queue_is_refused(self, db: Connection, function: str) -> None:
        db.execute(
            f"create trigger trg before insert on t for each row"
            f" execute function pgque.{function}()".encode()
        )
        with refused("PQ005", "trg", "public.t", "no queue"):
            db.execute(INSERT.encode())

    def test_an_unknown_queue_is_refused(self, db: Connection, function: str) -> None:
        attach(db, function, queue="nowhere")
        with refused("PQ001", "nowhere"):
            db.execute(INSERT.encode())
        assert rows(db, "select * from t") == []

    def test_a_closed_queue_refuses_the_change(self, db: Connection, function: str) -> None:
        attach(db, function)
        value(db, "select pgque.set_queue_config('q', 'disable_insert', 'true')")
        with refused("PQ006"):
            db.execute(INSERT.encode())

    @pytest.mark.parametrize("ops", ["insert", "update", "delete"])
    def test_a_trigger_for_each_statement_is_refused(
        self, db: Connection, function: str, ops: str
    ) -> None:
        attach(db, function, ops=ops, each="statement")
        with refused("PQ005", "trg", "for each row"):
            db.execute(
                {"insert": INSERT, "update": "update t set a = a", "delete": "delete from t"}[
                    ops
                ].encode()
            )

    @pytest.mark.parametrize("argument", ["backup", "when=true", "ev_type='x'"])
    def test_truncate_has_no_row_to_show(
        self, db: Connection, function: str, argument: str
    ) -> None:
        attach(db, function, argument, ops="truncate", each="statement")
        with refused("PQ005", "TRUNCATE"):
            db.execute("truncate t")

    def test_deny_refuses_every_change(self, db: Connection, function: str) -> None:
        db.execute(INSERT.encode())
        attach(db, function, "deny", "when=false", queue="nowhere")
        attach(db, function, "deny", ops="truncate", each="statement", name="trunc")
        for statement in [
            "insert into t values (2)",
            "update t set a = 'c'",
            "delete from t",
            "truncate t",
        ]:
            with refused("PQ014", "public.t", statement.split()[0].upper()):
                db.execute(statement.encode())
        assert len(rows(db, "select * from t")) == 1

    def test_ignored_columns_are_not_shown(self, db: Connection, function: str) -> None:
        attach(db, function, "ignore=a, b")
        db.execute(INSERT.encode())
        assert "one" not in (take_events(db)[0].data or "")

    def test_an_update_of_ignored_columns_only_makes_no_event(
        self, db: Connection, function: str
    ) -> None:
        attach(db, function, "ignore=b")
        db.execute(INSERT.encode())
        db.execute("update t set b = 'y'")
        assert len(take_events(db)) == 1
        db.execute("update t set a = 'two', b = 'z'")
        db.execute("update t set b = b")
        assert len(take_events(db)) == 2

    def test_an_update_of_the_events_own_fields_only_makes_no_event_either(
        self, db: Connection, function: str
    ) -> None:
        db.execute("alter table t add _pgq_ev_type text")
        attach(db, function, "ignore=b")
        db.execute(INSERT.encode())
        db.execute("update t set _pgq_ev_type = 'x'")
        assert len(take_events(db)) == 1

    def test_without_ignored_columns_every_update_makes_an_event(
        self, db: Connection, function: str
    ) -> None:
        attach(db, function)
        db.execute(INSERT.encode())
        db.execute("update t set a = a")
        assert len(take_events(db)) == 2

    @pytest.mark.parametrize("word", ["SKIP", "skip"])
    def test_skip_keeps_the_row_and_sends_the_event(
        self, db: Connection, function: str, word: str
    ) -> None:
        db.execute(INSERT.encode())
        attach(db, function, word, when="before")
        for statement in ["insert into t values (2)", "update t set a = 'c'", "delete from t"]:
            assert db.execute(statement.encode()).rowcount == 0
        assert len(take_events(db)) == 3
        assert rows(db, "select * from t") == [(1, "one", "x")]

    def test_skip_skips_where_when_is_false_too(self, db: Connection, function: str) -> None:
        attach(db, function, "SKIP", "when=false", when="before")
        db.execute(INSERT.encode())
        assert (take_events(db), rows(db, "select * from t")) == ([], [])

    def test_skip_in_an_after_trigger_is_refused(self, db: Connection, function: str) -> None:
        attach(db, function, "SKIP")
        with refused("PQ005", "trg", "after INSERT"):
            db.execute(INSERT.encode())

    def test_skip_of_a_truncate_is_refused(self, db: Connection, function: str) -> None:
        attach(db, function, "SKIP", when="before", ops="truncate", each="statement")
        with refused("PQ005", "before TRUNCATE"):
            db.execute("truncate t")

    def test_before_triggers_let_the_change_through(self, db: Connection, function: str) -> None:
        attach(db, function, when="before")
        db.execute(INSERT.encode())
        db.execute("update t set a = 'two'")
        assert rows(db, "select * from t") == [(1, "two", "x")]
        db.execute("delete from t")
        assert rows(db, "select * from t") == []
        assert len(take_events(db)) == 3

    def test_a_before_trigger_sees_what_earlier_ones_changed(
        self, db: Connection, function: str
    ) -> None:
        db.execute(
            "create function stamp() returns trigger language plpgsql as"
            " $$ begin new.a := 'stamped'; return new; end $$"
        )
        db.execute("create trigger a before insert on t for each row execute function stamp()")
        attach(db, function, when="before", name="b")
        db.execute(INSERT.encode())
        assert "stamped" in (take_events(db)[0].data or "")
        assert value(db, "select a from t") == "stamped"


def test_pgqs_test_of_expressions(db: Connection) -> None:
    (event, _) = fire(db, "logutriga", "ev_extra1='test=' || a", "ev_type=b")
    assert event == Event("x", "id=1&a=one&b=x", "test=one")


def test_a_null_type_stays_null(db: Connection) -> None:
    assert fire(db, "logutriga", "ev_type=null")[0].type is None


def test_a_condition_that_is_no_boolean_is_refused(db: Connection) -> None:
    attach(db, "logutriga", "when=a")
    with refused("42804", "boolean"):
        db.execute(INSERT.encode())

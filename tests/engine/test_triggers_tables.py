"""The triggers on all kinds of tables, keys and sessions."""

import json
from collections.abc import Iterator

import pytest

from tests.support.queues.sql import Connection, refused
from tests.support.queues.triggers import TRIGGERS, Event, attach, events_of

NASTY_NAMES = [
    'a"b',
    "a'b",
    "a.b",
    "a b",
    "a=b&c",
    "select",
    "ünï☃",
    "x; drop table victim; --",
    '"; drop table victim; --',
    "$$ %s %I $1 {}",
    "back\\slash",
]
EACH = pytest.mark.parametrize("function", TRIGGERS)


@pytest.fixture
def role(db: Connection) -> Iterator[str]:
    db.execute("create role t_clerk")
    yield "t_clerk"
    db.execute("reset role")
    db.execute("drop owned by t_clerk")
    db.execute("drop role t_clerk")


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue()


def ident(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def data(found: list[Event]) -> list[str | None]:
    return [event.data for event in found]


class TestKeys:
    @EACH
    def test_a_row_without_a_key_is_inserted_only(self, db: Connection, function: str) -> None:
        db.execute("create table t (a int)")
        attach(db, function)
        assert len(events_of(db, "insert into t values (1)")) == 1
        for statement in ("update t set a = 2", "delete from t"):
            with refused("PQ014", "trg", "public.t", "pkey="):
                db.execute(statement.encode())
        assert (events_of(db), db.rows("select * from t")) == ([], [(1,)])

    @EACH
    def test_the_key_must_stay_even_a_given_one(self, db: Connection, function: str) -> None:
        db.execute("create table t (id int primary key, a text)")
        db.execute("insert into t values (1, 'x')")
        attach(db, function)
        with refused("PQ014", "trg", "public.t", '"id"'):
            db.execute("update t set id = 6")
        db.execute("drop trigger trg on t")
        attach(db, function, "pkey=a")
        db.execute("update t set id = 2")
        with refused("PQ014", '"a"'):
            db.execute("update t set a = 'z'")
        assert db.rows("select * from t") == [(2, "x")]

    def test_the_key_is_named_in_its_own_order(self, db: Connection) -> None:
        db.execute("create table t (a int, b int, c int, primary key (c, a) include (b))")
        attach(db, "logutriga")
        (one,) = events_of(db, "insert into t values (1, 2, 3)")
        assert one.type == "I:c,a"

    def test_pgqs_test_of_a_given_key(self, db: Connection) -> None:
        db.execute("create table t (nr int4, col1 text, col2 text)")
        attach(db, "logutriga", "pkey=nr,col1", name="t1")
        attach(db, "sqltriga", "pkey=nr,col1", name="t2")
        insert = "insert into t values (1, 'col1', 'col2')"
        found = events_of(db, insert, "update t set col2 = 'col2x'", "delete from t")
        assert [(event.type, event.data) for event in found] == [
            ("I:nr,col1", "nr=1&col1=col1&col2=col2"),
            ("I", "(nr,col1,col2) values ('1','col1','col2')"),
            ("U:nr,col1", "nr=1&col1=col1&col2=col2x"),
            ("U", "col2='col2x' where nr='1' and col1='col1'"),
            ("D:nr,col1", "nr=1&col1=col1&col2=col2x"),
            ("D", "nr='1' and col1='col1'"),
        ]

    def test_sqltriga_finds_a_row_by_an_ignored_key_or_a_null(self, db: Connection) -> None:
        db.execute("create table t (a int, b int, c int)")
        attach(db, "sqltriga", "pkey=a,b", "ignore=a")
        insert = "insert into t values (1, null, 3)"
        assert data(events_of(db, insert, "update t set c = 4", "delete from t")) == [
            "(b,c) values (null,'3')",
            "c='4' where a='1' and b is null",
            "a='1' and b is null",
        ]


class TestNames:
    def test_of_tables_schemas_columns_triggers_and_queues(self, db: Connection) -> None:
        db.execute("create table victim ()")
        for name in NASTY_NAMES:
            quoted = ident(name)
            table = f"{quoted}.{quoted}"
            db.make_queue(name)
            db.execute(f"create schema {quoted}".encode())
            db.execute(f"create table {table} ({quoted} text primary key, b text)".encode())
            for function in TRIGGERS:
                trigger = ident(f"{function} {name}")
                attach(db, function, "backup", "ev_extra3=b", table=table, queue=name, name=trigger)
            into = table.replace("%", "%%")
            db.execute(f"insert into {into} values (%s, %s)".encode(), [name, name])
            found = f"select ev_type, ev_data, ev_extra1 from pgque.event_{db.queue_id(name)}"
            db.execute(f"update {table} set b = 'new'".encode())
            made = db.rows(f"{found} order by ev_id")
            assert {extra1 for *_, extra1 in made} == {f"{name}.{name}"}
            assert json.loads(made[0][0])["table"] == [name, name]
            assert json.loads(made[0][1]) == {name: name, "b": name}
        assert db.value("select to_regclass('victim')") is not None

    def test_in_statements_of_sqltriga_and_in_arguments(self, db: Connection) -> None:
        db.prepare_threshold = None  # each name makes another table copy
        db.execute("create table victim ()")
        for name in NASTY_NAMES:
            quoted = ident(name)
            db.execute(f"create table t ({quoted} text primary key, b text)".encode())
            db.execute("create table copy (like t)")
            attach(db, "sqltriga")
            db.execute("insert into t values (%s, %s)", [name, name])
            one, two = events_of(db, "update t set b = 'new'")
            db.execute(f"insert into copy {one.data}".encode())
            db.execute(f"update copy set {two.data}".encode())
            assert db.rows("select * from copy") == [(name, "new")]
            db.execute("drop trigger trg on t")
            attach(db, "jsontriga", f"ignore={name}", f"ev_extra3={quoted}")
            (event,) = events_of(db, "insert into t values ('x', 'y')")
            assert (event.data, event.extra3) == ('{"b":"y"}', "x")
            db.execute("drop table t, copy")
        assert db.value("select to_regclass('victim')") is not None


class TestTables:
    def test_a_partition_speaks_for_itself(self, db: Connection) -> None:
        db.execute(
            "create table t (id int, k int, v text, primary key (id, k)) partition by list (k)"
        )
        db.execute("create table p1 (v text, junk int, k int not null, id int not null)")
        db.execute("alter table p1 drop column junk")
        db.execute("alter table t attach partition p1 for values in (1)")
        db.execute("create table p2 partition of t for values in (2)")
        attach(db, "logutriga", "ev_extra3=v")
        insert = "insert into t values (1, 1, 'x'), (1, 2, 'y')"
        assert events_of(db, insert, "update t set k = 1, id = 5 where v = 'y'") == [
            Event("I:id,k", "v=x&k=1&id=1", "public.p1", None, "x"),
            Event("I:id,k", "id=1&k=2&v=y", "public.p2", None, "y"),
            Event("D:id,k", "id=1&k=2&v=y", "public.p2", None, "y"),
            Event("I:id,k", "v=y&k=1&id=5", "public.p1", None, "y"),
        ]

    def test_dropped_and_added_columns(self, db: Connection) -> None:
        db.execute("create table t (x int, id int primary key, y int, a text)")
        for function in TRIGGERS:
            attach(db, function, "ev_extra3=a", name=f"trg_{function}")
        events_of(db, "insert into t values (1, 1, 1, 'one')")
        db.execute("alter table t drop x, drop y, add z text default 'zed'")
        made = events_of(db, "insert into t values (2, 'two')")
        assert data(made) == [
            '{"id":2,"a":"two","z":"zed"}',
            "id=2&a=two&z=zed",
            "(id,a,z) values ('2','two','zed')",
        ]
        assert {event.extra3 for event in made} == {"two"}
        attach(db, "logutriga", "ignore=z", name="a")
        db.execute("alter table t drop z")
        with refused("PQ005", "'z'"):
            db.execute("insert into t values (3)")

    def test_generated_columns(self, db: Connection) -> None:
        db.execute(
            "create table t (id int primary key, v text,"
            " g text generated always as (v || '!') stored)"
        )
        for function in TRIGGERS:
            attach(db, function, name=f"after_{function}")
            attach(db, function, when="before", name=f"before_{function}")
        assert data(events_of(db, "insert into t values (1, 'x')")) == [
            '{"id":1,"v":"x"}',
            "id=1&v=x",
            "(id,v) values ('1','x')",
            '{"id":1,"v":"x","g":"x!"}',
            "id=1&v=x&g=x%21",
            "(id,v) values ('1','x')",
        ]
        assert data(events_of(db, "update t set v = 'y'"))[2::3] == ["v='y' where id='1'"] * 2

    def test_a_generated_column_does_not_hide_an_update_that_changes_nothing(
        self, db: Connection
    ) -> None:
        db.execute(
            "create table t (id int primary key, v text,"
            " g text generated always as (v || '!') stored)"
        )
        attach(db, "jsontriga", "ignore=v", when="before")
        events_of(db, "insert into t values (1, 'x')")
        assert data(events_of(db, "update t set v = v")) == ['{"id":1}']
        assert events_of(db, "update t set v = 'y'") == []

    @pytest.mark.server(18)
    def test_virtual_columns_are_not_shown(self, db: Connection) -> None:
        db.execute(
            "create table t (id int primary key, g int generated always as (id + 1) virtual)"
        )
        attach(db, "jsontriga")
        assert data(events_of(db, "insert into t values (1)")) == ['{"id":1}']

    def test_a_view_with_instead_of_triggers(self, db: Connection) -> None:
        db.execute("create table t (id int, v text)")
        db.execute("insert into t values (1, 'x')")
        db.execute("create view w as select * from t")
        attach(db, "logutriga", "pkey=id", table="w", when="instead of")
        assert db.execute("update w set v = 'y'").rowcount == 1
        assert events_of(db) == [Event("U:id", "id=1&v=y", "public.w")]

    @EACH
    def test_a_wide_row_with_a_long_value(self, db: Connection, function: str) -> None:
        columns = ", ".join(f"c{nr} text default 'v{nr}'" for nr in range(1, 400))
        db.execute(f"create table t (id int primary key, {columns}, v text)".encode())
        attach(db, function)
        (found,) = data(
            events_of(db, "insert into t (id, v) values (1, repeat('a b\"c,', 100000))")
        )
        assert len(found or "") > 600_000
        assert all(f"v{nr}" in (found or "") for nr in (1, 2, 399))


class TestSessions:
    @EACH
    def test_local_sessions_and_replicas_make_no_event_unless_always_on(
        self, db: Connection, function: str
    ) -> None:
        db.execute("create table t (id int primary key)")
        attach(db, function, "ev_extra3='always'", name="a")
        db.execute("alter table t enable always trigger a")
        attach(db, function, "deny", name="denied")
        attach(db, function, "SKIP", when="before", name="skipped")
        db.execute("set session_replication_role = 'local'")
        assert events_of(db, "insert into t values (1)") == []
        db.execute("set session_replication_role = 'replica'")
        assert [e.extra3 for e in events_of(db, "insert into t values (2)")] == ["always"]
        assert db.rows("select * from t") == [(1,), (2,)]

    @EACH
    def test_a_writer_may_change_the_table(self, db: Connection, role: str, function: str) -> None:
        db.execute("create table t (id int primary key, a text)")
        db.execute("create function who() returns text language sql as 'select current_user::text'")
        attach(db, function, "backup", "ev_extra3=who()", "when=true")
        attach(db, function, ops="truncate", each="statement", name="trunc")
        db.execute("grant all on t to t_clerk")
        db.execute("grant pgque_writer to t_clerk")
        db.execute("set role t_clerk")
        for statement in ("insert into t values (1, 'x y')", "update t set a = 'z'"):
            db.execute(statement.encode())
        made = events_of(db, "delete from t", "truncate t", "reset role")
        assert [event.extra3 for event in made] == [role, role, role, None]

    @EACH
    def test_without_pgque_writer_the_grant_is_named(
        self, db: Connection, role: str, function: str
    ) -> None:
        db.execute("create table t (id int primary key)")
        attach(db, function)
        for granted in ("all on t", "pgque_reader"):
            db.execute(f"grant {granted} to t_clerk; set role t_clerk".encode())
            with refused(
                "42501",
                'role "t_clerk" may not send the changes of table public.t: trigger "trg"',
                "grant pgque_writer to t_clerk;",
            ):
                db.execute("insert into t values (1)")
            db.execute("reset role")
        assert db.rows("select * from t") == []

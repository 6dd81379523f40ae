"""What the triggers publish: the formats of PgQ, the same in every session."""

import json

import psycopg
import pytest

from tests.support.queues.sql import Connection
from tests.support.queues.triggers import TRIGGERS, Event, attach, events_of


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.make_queue()
    db.execute("set timezone = 'UTC'")


@pytest.fixture
def bank(db: Connection) -> Connection:
    db.execute("create table t (id int primary key, txt text, val float8)")
    return db


def change(db: Connection) -> list[Event]:
    db.execute("insert into t (id, txt) values (1, 'text1')")
    db.execute("update t set txt = 'text2'")
    db.execute("delete from t")
    return events_of(db)


def published(db: Connection, function: str, type_name: str, literal: str) -> str:
    """The data of an event for a row with one value and an array of it."""
    db.execute("drop table if exists t")
    db.execute(f"create table t (nr int, val {type_name}, arr {type_name}[])".encode())
    attach(db, function)
    db.execute(
        f"insert into t values (1, %s::{type_name}, array[%s, %s]::{type_name}[])".encode(),
        [literal] * 3,
    )
    (event,) = events_of(db)
    assert event.data is not None
    return event.data


KIND = '{{"op":"{}","table":["public","t"],"pkey":["id"]}}'.format
ROWS = {
    "logutriga": [
        ("I:id", "id=1&txt=text1&val"),
        ("U:id", "id=1&txt=text2&val"),
        ("D:id", "id=1&txt=text2&val"),
    ],
    "sqltriga": [
        ("I", "(id,txt,val) values ('1','text1',null)"),
        ("U", "txt='text2' where id='1'"),
        ("D", "id='1'"),
    ],
    "jsontriga": [
        (KIND("INSERT"), '{"id":1,"txt":"text1","val":null}'),
        (KIND("UPDATE"), '{"id":1,"txt":"text2","val":null}'),
        (KIND("DELETE"), '{"id":1,"txt":"text2","val":null}'),
    ],
}


@pytest.mark.parametrize("function", TRIGGERS)
def test_a_row_is_encoded_and_backup_keeps_the_old_one(bank: Connection, function: str) -> None:
    attach(bank, function)
    assert change(bank) == [Event(*each, "public.t") for each in ROWS[function]]
    bank.execute("drop trigger trg on t")
    attach(bank, function, "backup")
    old = ROWS["logutriga" if function == "sqltriga" else function][0][1]
    assert [event.extra2 for event in change(bank)] == [None, old, None]


def test_sqltriga_sets_what_changed_or_the_key_to_itself(db: Connection) -> None:
    db.execute("create table t (id int primary key, txt text, val numeric)")
    attach(db, "sqltriga")
    db.execute("insert into t values (1, 'a', 1.0)")
    db.execute("update t set val = 1.00")  # equal to the type
    db.execute("update t set txt = txt")
    db.execute("update t set val = null, txt = 'b'")
    assert [event.data for event in events_of(db)][1:] == [
        "val='1.00' where id='1'",
        "id='1' where id='1'",
        "txt='b',val=NULL where id='1'",
    ]


# Figures of PgQ's own trigger_types test.
JSON_VALUES = [
    ("text", "'\"quoted\\string$%,@\"'", r'"' + r"'\"quoted\\string$%,@\"'" + '"'),
    ("bytea", r"\x00FF01", r'"\\x00ff01"'),
    ("bool", "false", "false"),
    ("timestamptz", "2009-09-19 11:59:48.599", '"2009-09-19T11:59:48.599+00:00"'),
    ("timestamptz", "infinity", '"infinity"'),
    ("timestamp", "2009-09-19 11:59:48.599", '"2009-09-19T11:59:48.599"'),
    ("timestamp", "0044-03-15 12:00 BC", '"0044-03-15T12:00:00 BC"'),
    ("date", "2009-09-19", '"2009-09-19"'),
    ("date", "-infinity", '"-infinity"'),
    ("int2", "10010", "10010"),
    ("int4", "100100100", "100100100"),
    ("int8", "-9223372036854775808", "-9223372036854775808"),
    ("oid", "100200300", '"100200300"'),
    ("float8", "NaN", '"NaN"'),
    ("numeric(40,15)", "100100.600500566501811", '"100100.600500566501811"'),
    ("box", "((1.1, 2.1), (5.6, 5.7))", '"(5.6,5.7),(1.1,2.1)"'),
    ("json", '{"a": [false, null, true]}', r'"{\"a\": [false, null, true]}"'),
    ("char(5)", "ab", '"ab   "'),
    ("text", "", '""'),
    ("text", "null", '"null"'),
    *(("text", text, json.dumps(text)) for text in ('"', '""', "\\", '\\"', "a\nb", "'", "{}")),
    ("text", 'a,"b",(c)\\ \n\t', r'"a,\"b\",(c)\\ \n\t"'),
    ("text", "ünïcödé €", '"ünïcödé €"'),
]


def test_jsontriga_is_like_pgqs(db: Connection) -> None:
    for type_name, literal, expected in JSON_VALUES:
        data = published(db, "jsontriga", type_name, literal)
        array = json.dumps(db.value("select arr::text from t"), ensure_ascii=False)
        assert data == f'{{"nr":1,"val":{expected},"arr":{array}}}'


URL_VALUES = [
    (
        "text",
        "'\"quoted\\string$%,@\"'",
        "val=%27%22quoted%5cstring%24%25%2c%40%22%27"
        "&arr=%7b%22%27%5c%22quoted%5c%5cstring%24%25%2c%40%5c%22%27%22%2c"
        "%22%27%5c%22quoted%5c%5cstring%24%25%2c%40%5c%22%27%22%7d",
    ),
    ("bool", "true", "val=t&arr=%7bt%2ct%7d"),
    ("date", "2009-09-19", "val=2009-09-19&arr=%7b2009-09-19%2c2009-09-19%7d"),
    (
        "text",
        "é=&+ ~-_.",
        "val=%c3%a9%3d%26%2b+%7e-_.&arr=%7b%22%c3%a9%3d%26%2b+%7e-_.%22"
        "%2c%22%c3%a9%3d%26%2b+%7e-_.%22%7d",
    ),
    (
        "timestamptz",
        "2009-09-19 11:59:48.599",
        "val=2009-09-19+11%3a59%3a48.599%2b00"
        "&arr=%7b%222009-09-19+11%3a59%3a48.599%2b00%22%2c%222009-09-19+11%3a59%3a48.599%2b00%22%7d",
    ),
]


def test_logutriga_is_like_pgqs(db: Connection) -> None:
    for type_name, literal, expected in URL_VALUES:
        assert published(db, "logutriga", type_name, literal) == f"nr=1&{expected}"


SQL_VALUES = [
    (
        "text",
        "'\"quoted\\string$%,@\"'",
        "E'''\"quoted\\\\string$%,@\"''',"
        "E'{\"''\\\\\"quoted\\\\\\\\string$%,@\\\\\"''\",\"''\\\\\"quoted\\\\\\\\string$%,@\\\\\"''\"}'",
    ),
    ("bytea", r"\x00FF01", r"""E'\\x00ff01',E'{"\\\\x00ff01","\\\\x00ff01"}'"""),
    ("bool", "false", "'f','{f,f}'"),
]


def test_sqltriga_is_like_pgqs(db: Connection) -> None:
    for type_name, literal, expected in SQL_VALUES:
        data = published(db, "sqltriga", type_name, literal)
        assert data == f"(nr,val,arr) values ('1',{expected})"


def test_fragments_of_sqltriga_rebuild_the_table(db: Connection) -> None:
    db.execute("create table t (id int primary key, a text, b timestamptz, c float8, d bytea)")
    db.execute("create table copy (like t)")
    attach(db, "sqltriga")
    db.execute("set datestyle = 'SQL, DMY'")
    db.execute("set extra_float_digits = -5")
    for nr, text in enumerate(["plain", "it's", 'a\\b"', ""]):
        db.execute(
            "insert into t values (%s, %s, '2001-02-03 04:05+00', 0.1::float8 * 3, %s)",
            [nr, text, text.encode()],
        )
    db.execute("update t set a = a || '!', b = null where id > 1")
    db.execute("delete from t where id = 0")
    db.execute("reset datestyle")
    db.execute("reset extra_float_digits")
    verbs = {
        "I": "insert into copy {}",
        "U": "update copy set {}",
        "D": "delete from copy where {}",
    }
    for event in events_of(db):
        db.execute(verbs[event.type or ""].format(event.data).encode())
    assert db.rows("select * from copy order by id") == db.rows("select * from t order by id")


@pytest.mark.parametrize("function", TRIGGERS)
def test_display_settings_of_the_session_change_nothing(db: Connection, function: str) -> None:
    db.execute(
        "create table t (id int primary key, a timestamptz, b interval, c float8, d bytea,"
        " e tstzrange, f date, g text)"
    )
    attach(db, function, "ignore=g")
    insert = (
        b"insert into t values (%s, '2001-02-03 04:05+00', '1 day 2 hours', 0.1::float8 * 3,"
        rb" '\x00ff', '[2001-02-03,)', '2001-02-03')"
    )
    db.execute(insert, [1])
    for setting in [
        "datestyle = 'German'",
        "intervalstyle = 'sql_standard'",
        "extra_float_digits = -5",
        "bytea_output = 'escape'",
    ]:
        db.execute(f"set {setting}".encode())
    db.execute(insert, [2])
    one, two = events_of(db)
    assert (one.data or "").replace("1", "#", 1) == (two.data or "").replace("2", "#", 1)
    # A change that the session does not show is sent, too.
    db.execute("update t set c = 0.3, g = 'y' where id = 1")
    db.execute("update t set c = 0.1::float8 * 3, g = 'z' where id = 1")
    _, event = events_of(db)
    assert "0.30000000000000004" in (event.data or "")


@pytest.mark.parametrize("function", TRIGGERS)
def test_old_sessions_change_no_backslash(db: Connection, database_url: str, function: str) -> None:
    """A session parses the functions by its own standard_conforming_strings."""
    db.execute("create table t (id int primary key, a text, kind text, status text)")
    attach(db, function, "ignore=kind, status")
    insert = "insert into t values (%s, %s, 'k', 's')"
    for number, setting in enumerate(("off", "on")):
        with psycopg.connect(database_url, autocommit=True) as session:
            session.execute(f"set standard_conforming_strings = {setting}")
            session.execute(insert, [number, 'a\\b" é'])
    off, on = events_of(db)
    assert (off.data or "").replace("0", "1", 1) == on.data


def test_truncate_is_sent(bank: Connection) -> None:
    for function, kind, data in (
        ("jsontriga", KIND("TRUNCATE"), "{}"),
        ("logutriga", "R", ""),
        ("sqltriga", "R", ""),
    ):
        for when in ("before", "after"):
            attach(bank, function, ops="truncate", each="statement", when=when)
            assert events_of(bank, "truncate t") == [Event(kind, data, "public.t")]
            bank.execute("drop trigger trg on t")


def test_a_table_without_columns_makes_events(db: Connection) -> None:
    db.execute("create table t ()")
    for function in TRIGGERS:
        attach(db, function, name=f"trg_{function}")
    db.execute("insert into t default values")
    assert [event.data for event in events_of(db)] == ["{}", "", "() values ()"]

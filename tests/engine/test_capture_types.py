"""Values of each type are the same in events and copies, whatever the sessions' settings are."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.queues.sql import Connection, connect, run
from tests.support.queues.type_values import NOT_WRITTEN, ODD, OTHER, SETUP, VALUES, settings

EVENTS = "select ev_data from pgque.event where ev_extra1 = %s order by ev_id"
KEYS: dict[str, tuple[str, ...]] = {
    # What is not here has its values in VALUES, none of which is equal to another.
    "numeric": ("1.0", "1.00", "1", "NaN", "0.10"),
    "numeric(12,3)": ("1.0", "2"),
    "bpchar": ("a", "a ", "b"),
    "char(4)": ("a", "b"),
    "interval": ("1 mon", "30 days", "720:00", "29 days 24:00", "1 day"),
    "jsonb": ('{"a": 1.0}', '{"a": 1.00}', "1"),
    "numrange": ("[1.0,2.0]", "[1,2.00]", "empty"),
    "nummultirange": ("{[1.0,2.0]}", "{[1,2.00]}", "{}"),
    "numeric[]": ("{1.0,NULL}", "{1.00,NULL}", "[2:3]={1.0,NULL}", "{}"),
    "interval[]": ('{"1 mon"}', '{"30 days"}', "{NULL}"),
    "public.pair[]": ('{"(7,\\"2026-01-02 03:04:05+05:30\\",fine)"}', "{}"),
    "public.amount": ("1.0", "1.00", "2"),
    "public.sized": ("(1.0,a)", "(1.00,a)", "(,a)", "(1.0,)"),
    "text[]": ("{NULL}", '{"NULL"}', '{"",""}', "{}"),
    "bytea": ("\\x00ff", "", "\\x00"),
    "timetz": ("04:05:06.7+05:30", "03:05:06.7+04:30"),
    "inet": ("10.0.0.1/8", "10.0.0.1", "::1", "10.0.0.1/32"),
    "text": ("a", "A", "a ", "e\u0301", "é"),
}
# What a key may be of, beside KEYS. Of the others, equal values print equally.
ACCEPTED = {
    "smallint", "integer", "bigint", "boolean", "money", "varchar(9)", "name", '"char"', "uuid",
    "date", "time", "timestamp", "timestamp(0)", "timestamptz", "interval day to minute",
    "bit(3)", "varbit", "cidr", "macaddr", "macaddr8", "oid", "xid8", "pg_lsn", "oidvector",
    "int2vector", "int4range", "int8range", "daterange", "tsrange", "tstzrange", "int4multirange",
    "int8multirange", "datemultirange", "tsmultirange", "tstzmultirange", "public.mood",
    "public.pair",
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(shared_database_url: str) -> Iterator[Connection]:
    with connect(shared_database_url) as db:
        db.make_queue()
        run(db, SETUP)
        yield db


@pytest.fixture
def db(shared: Connection) -> Iterator[Connection]:
    """A transaction that is rolled back."""
    with shared.transaction(force_rollback=True):
        yield shared


def printed(db: Connection, table: str) -> dict[int, str]:
    """The rows of a copy, by their id."""
    for (setting,) in db.rows("select pgque.capture_settings()"):
        run(db, setting)
    columns = db.value("select pgque.capture_columns(%s::regclass)", table)
    rows = db.rows(f"select id, row_to_json(r)::text from (select {columns} from {table}) r")
    return dict(rows)


def test_each_type_is_tried(db: Connection) -> None:
    types = db.rows(
        "select typname from pg_type where typnamespace = 'pg_catalog'::regnamespace"
        " and typtype in ('b', 'r', 'm') and typcategory <> 'A'"
    )
    tried = db.rows("select (%s::text[])[n]::regtype::oid::regtype, typname from generate_series(1,"
                    " %s) n join pg_type t on t.oid = to_regtype((%s::text[])[n])",
                    [*VALUES], len(VALUES), [*VALUES])  # fmt: skip
    assert {name for (name,) in types} - {name for _, name in tried} <= NOT_WRITTEN


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.server(15)] if kind == "xml" else [])
        for kind, values in VALUES.items()
        if values
    ],
)
def test_a_value_is_the_same_in_copies_and_events_of_all_sessions(
    db: Connection, kind: str
) -> None:
    run(
        db,
        f"create domain d as {kind} check (value::text is distinct from 'no value');"
        f"create domain dd as d not null; create type c as (x {kind}, y d);"
        f"create table v (id int primary key, plain {kind}, domain d, deep dd, list {kind}[],"
        " listed d[], c c); select pgque.capture('v', 'q')",
    )
    for number, text in enumerate(VALUES[kind]):
        db.execute(
            f"with x as (select $q${text}$q$::{kind} as x) insert into v select {number}, x, x, x,"
            " array[x, null], array[x]::d[], row(x, null)::c from x".encode()
        )
    run(db, f"insert into v (id, deep) values (90, $q${VALUES[kind][0]}$q$)")
    expected = db.rows(EVENTS, "public.v")
    for number, odd in enumerate((ODD, OTHER), 1):
        run(db, settings(odd))
        run(
            db,
            f"insert into public.v select id + {number * 100}, plain, domain, deep, list, listed, c"
            " from public.v where id < 100 order by id",
        )
        run(db, "reset all")

    rows: list[dict[str, Any]] = [json.loads(text) for (text,) in db.rows(EVENTS, "public.v")]
    given = rows[: len(expected)]
    for shift in (1, 2):
        later = rows[len(expected) * shift : len(expected) * (shift + 1)]
        assert [{**row, "id": row["id"] - 100 * shift} for row in later] == given
    assert all(row["plain"] == row["domain"] == row["deep"] for row in given[:-1])
    texts = {json.loads(text)["id"]: text for (text,) in db.rows(EVENTS, "public.v")}
    for odd in (ODD, OTHER):
        run(db, settings(odd))
        assert printed(db, "public.v") == texts
        run(db, "reset all")


@pytest.mark.parametrize("kind", sorted({*ACCEPTED, *KEYS}))
def test_a_key_is_found_by_what_is_printed(db: Connection, kind: str) -> None:
    run(db, "create domain public.amount as numeric")
    run(db, "create type public.sized as (n numeric, t text)")
    check_key(db, kind, KEYS.get(kind) or VALUES[kind])


def check_key(db: Connection, kind: str, values: Sequence[str]) -> None:
    """Rows are found by what is printed of their keys, also of equal ones."""
    run(db, f"create table t (k {kind} primary key, v text); select pgque.capture('t', 'q')")
    assert [stable for _, _, key, stable, _ in columns(db) if key] == [True]
    for text in values:
        run(db, f"insert into t values ($q${text}$q$::{kind}, 'new') on conflict (k) do nothing")
    check(db)
    for text in values:
        # Equal values that print differently, and others in turn.
        run(
            db, f"update t set k = $q${text}$q$::{kind}, v = 'again' where k = $q${text}$q$::{kind}"
        )
        check(db)
    run(db, f"delete from t where k = $q${values[0]}$q$::{kind}")
    check(db)
    insert = f"insert into t values ($q${values[-1]}$q$::{kind}, 'x')"
    run(db, f"{insert} on conflict (k) do update set v = 'y'")
    check(db)


def columns(db: Connection) -> list[tuple[Any, ...]]:
    return db.rows("select * from pgque.source_columns('t')")


def check(db: Connection) -> None:
    """A replica that finds rows by the bytes of their keys has the rows of the table."""
    replica: dict[str, Any] = {}
    for kind, text in db.rows("select ev_type, ev_data from pgque.event order by ev_id"):
        row = json.loads(text)
        if kind == "delete":
            assert replica.pop(json.dumps(row["k"])) == row
        else:
            replica[json.dumps(row["k"])] = row
    with db.transaction(force_rollback=True):
        for (setting,) in db.rows("select pgque.capture_settings()"):
            run(db, setting)
        listed = db.value("select pgque.capture_columns('public.t'::regclass)")
        rows = db.rows(f"select row_to_json(r)::text from (select {listed} from public.t) r")
    stored = [json.loads(text) for (text,) in rows]
    assert sorted(replica.values(), key=str) == sorted(stored, key=str)


def stable(db: Connection, kinds: Sequence[str]) -> list[str]:
    """Those in which a replica finds each row again by what is printed of its key."""
    found = []
    for kind in kinds:
        run(db, f"create table t (k {kind} primary key)")
        found += [kind for *_, is_stable, _ in columns(db) if is_stable]
        run(db, "drop table t")
    return found


INEXACT = [
    *("real", "double precision", "tid", "tsvector", "tsquery", "regclass", "regtype", "float8[]"),
    *("public.floats", "regproc[]", "public.inexact"),
]


def test_a_key_that_a_replica_could_miss_is_not_stable(db: Connection) -> None:
    run(db, "create type public.inexact as (f float8)")
    assert stable(db, [*INEXACT, "integer"]) == ["integer"]


BLIND = (
    "create collation blind (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
    "create domain folded as text collate blind; create type held as (t text collate blind);"
    "create type span as range (subtype = text, collation = blind)"
)


@pytest.mark.server(15)
def test_a_key_of_a_nondeterministic_collation_is_not_stable(db: Connection) -> None:
    run(db, BLIND)
    kinds = ["text collate blind", "folded", "held", "held[]", "span", "span[]"]
    assert stable(db, [*kinds, "text[] collate blind"]) == []


@pytest.mark.server(15)
@pytest.mark.parametrize("kind", ["text", "varchar(9)", "text[]"])
def test_a_key_that_becomes_an_equal_text_is_a_delete_and_an_update(
    db: Connection, kind: str
) -> None:
    run(db, f"{BLIND}; create table t (k {kind} collate blind primary key)")
    run(db, "select pgque.capture('t', 'q')")
    run(db, "insert into t values ('{a}'); update t set k = '{A}'")
    check(db)


@pytest.mark.server(15)
@pytest.mark.parametrize(
    ("kind", "values"), [("citext", ("a", "A", "b")), ("ltree", ("a.b", "", "a"))]
)
def test_a_key_of_an_extension_is_found_by_what_is_printed(
    db: Connection, kind: str, values: tuple[str, ...]
) -> None:
    run(db, f"create extension {kind}; create domain public.{kind}_key as {kind}")
    for key in (kind, f"public.{kind}_key", f"{kind}[]"):
        texts = [f"{{{text}}}" if key.endswith("[]") and text else text for text in values]
        check_key(db, key, [text or "{}" for text in texts] if key.endswith("[]") else texts)
        run(db, "drop table t; truncate pgque.event")

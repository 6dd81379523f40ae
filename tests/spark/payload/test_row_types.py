"""Every type of PostgreSQL, captured, and read as every Spark type.

A value is the row's, as PostgreSQL itself compares the two, or the event is malformed.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pgque_dagster.spark.payload.changes import ChangeFormat
from tests.spark.payload import payload_values as values
from tests.spark.payload.payload_values import (
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INSTANT,
    INT8,
    INT16,
    INT32,
    INT64,
    LOCAL,
    STRING,
    WIDE,
)  # fmt: skip
from tests.support.queues.sql import Connection, connect, make_queue, rows
from tests.support.queues.triggers import events_of

ALL = [
    *(BOOLEAN, INT8, INT16, INT32, INT64, FLOAT, DOUBLE, WIDE, STRING, BINARY),
    *(DATE, INSTANT, LOCAL),
]

DOMAINS = """
create domain whole as int;
create domain yes as bool;
create domain moment as timestamptz;
create domain note as text;
create type mood as enum ('sad', 'happy');
create type pair as (a int, b text);
"""

# A type of PostgreSQL, the Spark types that take each of these values, values that a Spark type may
# take or not, and values that only a string takes.
Matrix = tuple[str, list[t.DataType], list[str], list[str], list[str]]
MATRIX: list[Matrix] = [
    ("bool", [BOOLEAN], ["t", "f"], [], []),
    ("yes", [], [], ["t", "f"], []),
    ("int2", [INT16, INT32, INT64, WIDE, DOUBLE], ["0", "-32768", "32767"], [], []),
    ("int4", [INT32, INT64, WIDE, DOUBLE], ["0", "-2147483648", "2147483647"], [], []),
    ("whole", [WIDE, DOUBLE], ["0", "-2147483648", "2147483647"], [], []),
    ("int8", [INT64, WIDE],
     ["0", "-9223372036854775808", "9223372036854775807", "9007199254740993"], ["5"], []),
    ("oid", [WIDE], ["0", "4294967295"], [], []),
    ("float4", [FLOAT, DOUBLE],
     ["0.1", "-0", "1e-45", "3.4028235e38", "16777217", "NaN", "-Infinity", "0.33333334"],
     ["1", "1e10"], []),
    ("float8", [DOUBLE],
     ["0.1", "-0", "5e-324", "1.7976931348623157e308", "1e23", "0.30000000000000004", "NaN",
      "Infinity", "123456789.123456789"], ["1", "100", "1e20"], []),
    ("numeric", [WIDE], ["0", "1.10", "-12345678901234567890.123456789012345678"],
     ["1e30", "0.1", "7.00", "123456789012345.6", "1e-18", "12345678901234567890"],
     ["1e-19", "1e200", "-1e400"]),
    ("numeric", [DOUBLE], ["NaN", "Infinity", "-Infinity", "0.1", "1e200"], [], []),
    ("numeric(38,10)", [WIDE], ["1234567890.0123456789", "0.0000000001"], [],
     ["9999999999999999999999999999.0123456789"]),
    ("money", [], [], ["1234.5", "-1", "0"], []),
    ("text", [STRING], ["", " ", "null", "NULL", "a,\"b\",(c)\\ \n\t", "é€😀", "a=b&c +%25",
                        "x" * 200_000], ["7", "t", r"\x00", "2026-01-31"], []),
    ("note", [STRING], ["", "a b"], ["7"], []),
    ("moment", [STRING], ["2026-01-31 12:00Z", "infinity"], [], []),
    ("varchar(5)", [STRING], ["ab"], [], []),
    ("char(5)", [STRING], ["ab"], [], []),
    ('"char"', [STRING], ["x"], [], []),
    ("name", [STRING], ["ab"], [], []),
    ("bytea", [BINARY], ["", r"\x00ff", r"\x5c78"], [], []),
    ("date", [DATE], ["2026-01-31", "0001-01-01", "9999-12-31", "1582-10-10"], [],
     ["0044-03-15 BC", "0001-12-31 BC", "10000-01-01", "infinity", "-infinity"]),
    ("timestamp", [LOCAL],
     ["2026-01-31 12:00", "0001-01-01", "9999-12-31 23:59:59.999999", "0099-01-02 03:04:05.6",
      "2026-03-29 02:30", "1582-10-10 01:02:03"], [],
     ["0044-03-15 12:00 BC", "infinity", "-infinity", "10000-01-01"]),
    *(
        (
            name,
            [INSTANT],
            ["2026-01-31 12:00Z", "0001-01-02 12:00Z", "9999-12-30 23:59:59.999999Z",
             "1883-01-01 12:00Z", "0099-01-02 03:04:05.6Z", "2026-10-25 00:30Z",
             "2026-11-01 05:30Z", "2026-11-01 06:30Z"],
            [],
            ["0044-03-15 12:00Z BC", "infinity", "-infinity", "10000-01-02Z"],
        )
        for name in ("timestamptz",)
    ),
    *(
        (name, [STRING], texts, sometimes, [])
        for name, texts, sometimes in (
            ("time", ["12:30", "24:00"], []), ("timetz", ["12:30+01"], []),
            ("interval", ["1 day 2 hours", "-1 mon", "1 hour", "0"], []),
            ("uuid", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], []),
            ("json", ['{"a": [1.10, null]}', "[1]", '"x"'], ["1", "true", "null"]),
            ("jsonb", ['{"a": [1.10, null]}', "[1]", '"x"'], ["1", "true", "null"]),
            ("mood", ["sad"], []), ("pair", ['(1,"a b")', '(,"")'], []),
            ("int[]", ["{1,NULL}", "{}", "{{1},{2}}"], []),
            ("text[]", ['{"a b",NULL,"",null}'], []),
            ("timestamptz[]", ["{2026-01-31 12:00Z}"], []), ("bit(3)", ["101"], ["001"]),
            ("inet", ["10.0.0.1"], []), ("point", ["(1,2)"], []),
            ("int4range", ["[1,5)", "empty"], []), ("tsvector", ["a b"], []),
            ("pg_lsn", ["0/1"], []), ("regclass", ["pg_class"], []),
        )
    ),
]  # fmt: skip

SETTINGS = ["SQL, DMY", "German", "ISO, MDY"]
ZONES = ["Asia/Kolkata", "America/New_York", "UTC"]


@pytest.fixture
def db(database_url: str) -> Iterator[Connection]:
    with connect(database_url) as connection:
        make_queue(connection)
        connection.execute(DOMAINS.encode())
        yield connection


def publish(db: Connection, type_name: str, texts: list[str]) -> pa.RecordBatch:
    """A table of a column v, its rows in order, and the events of their inserts."""
    db.execute("drop table if exists t")
    db.execute(f"create table t (id int primary key, v {type_name}, text text)".encode())
    db.execute("select pgque.capture('t', 'q')")
    for nr, text in enumerate(texts):
        # What the value is does not depend on the session, nor what is published of it.
        db.execute(
            f"set datestyle = 'ISO, YMD'; create temporary table given as select"
            f" {literal(text)}::{type_name} as v".encode()
        )
        db.execute(f"set datestyle = '{SETTINGS[nr % 3]}'".encode())
        db.execute(f"set timezone = '{ZONES[nr % 3]}'".encode())
        db.execute("set extra_float_digits = -5; set bytea_output = 'escape'")
        db.execute("insert into t select %s, v from given", [nr])
        db.execute("drop table given")
    db.execute("set datestyle = 'ISO, YMD'; set timezone = 'UTC'; set bytea_output = 'hex'")
    db.execute("set extra_float_digits = 1; update t set text = format('%s', v)")
    events = [event for event in events_of(db) if event.type == "insert"]
    assert len(events) == len(texts)
    return inserts([event.data for event in events])


def inserts(rows: list[str | None]) -> pa.RecordBatch:
    columns = {"ev_type": ["insert"] * len(rows), "ev_data": rows, "ev_extra1": ["t"] * len(rows)}
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def read(events: pa.RecordBatch, data_type: t.DataType) -> list[tuple[Any, str | None]]:
    """The value or the reason of each."""
    form = ChangeFormat(values.fields(id=INT32, v=data_type), ["id"], "malformed")
    parsed = form.parser()(events)
    return [
        (row and row["v"], reason)
        for row, reason in zip(
            parsed.columns[3].to_pylist(), parsed.reasons.to_pylist(), strict=True
        )
    ]


def is_equal(db: Connection, nr: int, type_name: str, data_type: t.DataType, value: Any) -> bool:
    """Whether PostgreSQL finds that a value is what the table holds, or is the nearest float."""
    if data_type in (FLOAT, DOUBLE):
        ((text,),) = rows(db, "select text from t where id = %s", nr)
        # Not by a double, of which the nearest float may be another one.
        nearest = float(text) if data_type == DOUBLE else float(np.float32(np.longdouble(text)))
        return repr(value) == repr(nearest)
    same = {
        BOOLEAN: "text::bool = %s::bool",
        STRING: "text = %s",
        BINARY: "text::bytea = %s::bytea",
        DATE: "text::date = %s::date",
        INSTANT: "text::timestamptz = %s::timestamptz",
        LOCAL: "text::timestamp = %s::timestamp",
    }.get(data_type, "text::numeric = %s::numeric")
    if data_type == STRING and type_name in ("timestamp", "timestamptz", "moment", "timestamptz[]"):
        # Their text depends on the trigger and on the session's time zone.
        same = f"v = %s::text::{type_name}"
    ((equal,),) = rows(db, f"select {same} from t where id = %s", value, nr)
    return bool(equal)


def test_a_value_is_the_tables_or_the_event_is_malformed(db: Connection) -> None:
    wrong = []
    for type_name, fitting, taken, sometimes, refused in MATRIX:
        texts = [*taken, *sometimes, *refused]
        events = publish(db, type_name, texts)
        for data_type in ALL:
            for nr, (value, reason) in enumerate(read(events, data_type)):
                must_fit = data_type == STRING or (nr < len(taken) and data_type in fitting)
                must_not = data_type in fitting and nr >= len(taken) + len(sometimes)
                if reason is None:
                    fits = not must_not and is_equal(db, nr, type_name, data_type, value)
                else:
                    fits = not must_fit and reason.endswith(" - at `$.v`")
                if not fits:
                    wrong.append((type_name, texts[nr], data_type.simpleString(), value, reason))
    assert not wrong, "\n".join(map(str, wrong))


FLOATS = """
select 2::float8 ^ n from generate_series(-1074, 1023) n
union all select 3::float8 ^ n from generate_series(-600, 600) n
union all select ('1e' || n)::float8 from generate_series(-323, 308) n
union all select sin(n) * 10::float8 ^ (n % 300) from generate_series(-3000, 3000) n
"""
SINGLES = """
select (2::float8 ^ n)::float4 from generate_series(-149, 127) n
union all select (3::float8 ^ n)::float4 from generate_series(-90, 80) n
union all select ('1e' || n)::float4 from generate_series(-45, 38) n
union all select (sin(n) * 10::float8 ^ (n % 37))::float4 from generate_series(-3000, 3000) n
"""


@pytest.mark.parametrize(("data_type", "sql"), [(DOUBLE, FLOATS), (FLOAT, SINGLES)])
def test_every_float_is_read_as_itself(db: Connection, data_type: t.DataType, sql: str) -> None:
    found = rows(db, f"select v::text, v::float8 from ({sql}) x (v) where v <> 0")
    events = inserts([f'{{"id":1,"v":"{text}"}}' for text, _ in found])

    read_back = read(events, data_type)

    assert read_back == [(value, None) for _, value in found]

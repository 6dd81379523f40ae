"""A row from its table has the values of its event, of each type. What does not fit is named."""

import hashlib
import math
import re
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from psycopg import sql

from pgque_dagster.client import Client
from pgque_dagster.client.errors import MalformedPayload
from pgque_dagster.client.replicas.capture import capture_new
from pgque_dagster.client.replicas.deletes import HARD, SOFT, Deletes
from pgque_dagster.client.replicas.outcome import Apart
from pgque_dagster.client.replicas.snapshot import Snapshot
from pgque_dagster.client.replicas.source import SourceColumn, SourceTable
from pgque_dagster.client.replicas.spec import TableSpec
from pgque_dagster.spark.payload.changes import ChangeFormat
from pgque_dagster.spark.payload.parsing import EventParsing
from pgque_dagster.spark.replicas.misfit import misfit_error
from pgque_dagster.spark.replicas.rows import RowReader
from pgque_dagster.spark.replicas.source import spark_columns
from tests.support.queues.type_values import ODD, SETUP, VALUES
from tests.support.replicas.replication import QUEUE, LakeReplication

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
TIMES = st.datetimes(datetime.min, datetime.max)


def decimals(digits: int, places: int) -> st.SearchStrategy[Any]:
    end = 10**digits - 1
    return st.integers(-end, end).map(lambda x: f"{x}e-{places}")


# Of other types, values are chosen from VALUES.
CHOSEN: dict[str, st.SearchStrategy[Any]] = {
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "boolean": st.booleans(),
    "real": st.floats(width=32),
    "double precision": st.floats(),
    "numeric": decimals(40, 20),
    "numeric(12,3)": decimals(12, 3),
    "numeric(38,38)": decimals(38, 38),
    "numeric(5,0)": decimals(5, 0),
    "text": TEXTS,
    "varchar(9)": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9),
    "char(4)": st.text("aB ü", max_size=4),
    "bytea": st.binary(max_size=20),
    "date": st.dates(date.min, date.max),
    "timestamp": TIMES,
    "timestamp(3)": TIMES.filter(lambda x: x.year < 9999),
    "timestamptz": TIMES.map(lambda x: x.replace(tzinfo=UTC)),
    "uuid": st.uuids(),
    "integer[]": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
    "text[]": st.lists(st.none() | TEXTS, max_size=3),
    "float8[]": st.lists(st.none() | st.floats(), max_size=3),
    "timestamptz[]": st.lists(st.none() | TIMES.map(lambda x: x.replace(tzinfo=UTC)), max_size=3),
}  # fmt: skip
KINDS = {
    # The lake has no NaN in a decimal.
    kind: CHOSEN.get(kind, st.sampled_from(VALUES.get(kind) or [None]))
    for kind in {**VALUES, **CHOSEN}
    if kind != "xml"
}
COLUMNS = {f"{letter}{n}": kind for n, kind in enumerate(KINDS) for letter in "cd"}
# Null where a row has no value of a type.
Row = dict[str, Any]
ROWS = st.lists(st.fixed_dictionaries({}, optional=KINDS), min_size=1, max_size=8)
# Of the values at the ends of the types, and NaN with each sign.
ENDS = {
    "real": math.nan, "double precision": -math.nan, "date": date.min, "timestamp": datetime.max,
    "timestamptz": datetime.min.replace(tzinfo=UTC), "numeric(38,38)": "-0." + "9" * 38,
}  # fmt: skip
# Of these, the lake holds each value, and their hashes could be guessed.
_NEVER_TEXT = ("boolean", "real", "double precision")
_TEXTS = [name for name, kind in COLUMNS.items() if kind not in _NEVER_TEXT]
SPECS = [
    TableSpec("public.t"),
    TableSpec("public.t", arrays="list"),
    TableSpec("public.t", mask=dict.fromkeys(_TEXTS, "sha256")),
    TableSpec("public.t", unstorable=dict.fromkeys(_TEXTS, "text"), exclude=["id2"]),
]


@pytest.fixture
def table(queue_url: str) -> Iterator[Client]:
    """A captured table with columns of each type, and of a domain over it."""
    database = psycopg.conninfo.conninfo_to_dict(queue_url)["dbname"]
    with psycopg.connect(queue_url, autocommit=True) as db:
        for n, kind in enumerate(KINDS):
            db.execute((SETUP if not n else "").encode())
            db.execute(f"create domain d{n} as {kind}".encode())
        columns = [f"{name} {kind if name[0] == 'c' else name}" for name, kind in COLUMNS.items()]
        db.execute(f"create table t (id int primary key, id2 int, {','.join(columns)})".encode())
        # ADBC recognizes no type in a session that quotes all names.
        for name, value in ODD.items() - {("quote_all_identifiers", "on")}:
            db.execute(f"alter database {database} set {name} = {value}".encode())
    with Client(queue_url) as client:
        capture_new(client, QUEUE, ["public.t"])
        yield client


def insert(db: psycopg.Connection[Any], rows: list[Row]) -> None:
    values = [
        # In binary, because a text of NaN has no sign.
        sql.SQL("{}::{}").format(
            sql.SQL("%b" if kind in ("real", "double precision") else "%s"), sql.SQL(kind)
        )
        for kind in KINDS
        for _ in "cd"
    ]
    query = sql.SQL("insert into public.t values (%s, 1, {})").format(sql.SQL(", ").join(values))
    for number, row in enumerate(rows):
        db.execute(query, [number, *(row.get(kind) for kind in KINDS for _ in "cd")])


def copied(client: Client, spec: TableSpec) -> list[pa.RecordBatch]:
    source = SourceTable.find(client, spec)
    reader = RowReader(client, source, [source.name])
    with Snapshot.of_copy(client.url, QUEUE, HARD) as (_, snapshot):
        return list(reader.read(client.url, 0, snapshot.id))


def from_events(client: Client, spec: TableSpec) -> pa.RecordBatch:
    source = SourceTable.find(client, spec)
    with psycopg.connect(client.url, client_encoding="utf8") as db:
        found = db.execute(
            "select ev_id, ev_type, ev_data, ev_extra1 from pgque.event order by ev_id"
        ).fetchall()
    names = ["ev_id", "ev_type", "ev_data", "ev_extra1"]
    events = pa.RecordBatch.from_pylist([dict(zip(names, x, strict=True)) for x in found])
    parsed = ChangeFormat(spark_columns(source), source.key, "malformed").parser()(events)
    assert parsed.reasons.null_count == len(found)
    row = parsed.columns[-1]
    names = [field.name for field in row.type]
    columns = [
        hashed(column) if name in spec.mask else column
        for name, column in zip(names, row.flatten(), strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=names)


def hashed(texts: pa.Array) -> pa.Array:
    return pa.array(
        [x if x is None else hashlib.sha256(x.encode()).hexdigest() for x in texts.to_pylist()],
        pa.string(),
    )


def bits(value: Any) -> Any:
    """A value that equals another one only if both have the same bits."""
    if isinstance(value, list):
        return [bits(each) for each in value]
    return struct.pack(">d", value) if isinstance(value, float) else value


@settings(
    max_examples=3,
    deadline=None,
    # An example takes too long to find a smaller one.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow,
                           HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip
@given(ROWS)
@example([ENDS, {}])
def test_a_copied_row_has_the_values_of_its_event(table: Client, rows: list[Row]) -> None:
    with psycopg.connect(table.url, autocommit=True, client_encoding="utf8") as db:
        db.execute("set array_nulls = on; truncate public.t; truncate pgque.event")
        insert(db, rows)
    for spec in SPECS:
        wanted = from_events(table, spec)
        found = pa.Table.from_batches(copied(table, spec))
        assert found.schema.equals(wanted.schema)
        assert len(found) == len(rows)
        # A long row may be in a later block than those that were inserted after it.
        ids = found["id"].to_pylist()
        order = sorted(range(len(rows)), key=lambda place: ids[place])
        for name in wanted.schema.names:
            values = found[name].to_pylist()
            assert bits([values[x] for x in order]) == bits(wanted[name].to_pylist()), name


def test_a_value_that_the_lake_cannot_hold_is_refused_with_its_row(queue_url: str) -> None:
    for number, (kind, text, words) in enumerate(
        (
            ("date", "infinity", "infinity in column v of type date"),
            ("date", "-infinity", "-infinity in column v"),
            ("date", "5874897-12-31", "a time outside the years 1 to 9999 in column v"),
            ("date", "0001-12-31 BC", "a time outside the years 1 to 9999 in column v"),
            ("timestamp", "infinity", "infinity in column v"),
            ("timestamp", "-infinity", "-infinity in column v"),
            ("timestamp", "294276-12-31 23:59:59.999999", "a time outside the years 1 to 9999"),
            ("timestamp", "4713-01-01 BC", "a time outside the years 1 to 9999"),
            ("timestamptz", "infinity", "infinity in column v"),
            ("timestamptz", "9999-12-31 23:59:59.999999-01", "a time outside the years 1 to 9999"),
            ("timestamptz", "0001-01-01 00:00:00+01", "a time outside the years 1 to 9999"),
            ("numeric(5,2)", "NaN", "NaN in column v of type numeric(5,2)"),
            ("int[]", "{{1},{2}}", "an array with several dimensions"),
        )
    ):
        table = f"t{number}"
        with psycopg.connect(queue_url, autocommit=True) as db:
            db.execute(
                f"create table {table} (id int, k text, v {kind}, primary key (id, k))".encode()
            )
            db.execute(f"insert into {table} values (2, 'b', '{text}'), (3, 'c', null)".encode())
        with Client(queue_url) as client, pytest.raises(MalformedPayload) as failed:
            copied(client, TableSpec(f"public.{table}", arrays="list"))
        assert f"the row of public.{table} with id 2, k b has {words}" in str(failed.value)


COLUMN_KINDS = {
    "id": "integer", "a b": "text", "d": "date", "n": "numeric(5,2)", "i": "integer",
    "at": "timestamp with time zone", "b": "bytea", "f": "real",
}  # fmt: skip
WELL = dict.fromkeys(COLUMN_KINDS, "null") | {"id": "7", "a b": '"x"'}


def error_of(ev_id: int, **values: str) -> str:
    columns = tuple(SourceColumn(name, kind, None) for name, kind in COLUMN_KINDS.items())
    key = ("id", "a b")
    source = SourceTable("public.t", ("public", "t"), columns, key, "", TableSpec("public.t"))
    form = ChangeFormat(spark_columns(source), key, "malformed")
    rows = [WELL, WELL | values]
    texts = [
        "{" + ",".join(f'"{name}":{value}' for name, value in row.items()) + "}" for row in rows
    ]
    events = pa.record_batch(
        {"ev_id": [1, ev_id], "ev_type": ["insert"] * 2, "ev_data": texts, "ev_extra1": ["x"] * 2}
    )
    parsing = EventParsing(form, (), partial(misfit_error, source=source))
    with pytest.raises(MalformedPayload) as failed:
        list(parsing.batches(iter([events]), fails=True))
    assert "the repair job" in str(failed.value)
    return str(failed.value.args[0])


WHERE = "the row of public.t with id 7, a b x"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("d", '"infinity"', "infinity in column d of type date"),
        ("at", '"-infinity"', "-infinity in column at of type timestamp with time zone"),
        ("n", '"NaN"', "NaN in column n of type numeric(5,2)"),
        ("d", '"10000-01-01"', "a time outside the years 1 to 9999 in column d"),
        ("at", '"0044-03-15T12:00:00+00:00 BC"', "a time outside the years 1 to 9999 in column at"),
        ("n", '"1000.001"', "a text in column n of type numeric(5,2)"),
        ("b", '"secret"', "a text in column b of type bytea"),
        ("i", "9999999999", "a value of JSON's kind int in column i of type integer"),
        ("i", "true", "a value of JSON's kind bool in column i"),
        ("f", '"1e39"', "a text in column f of type real"),
    ],
)
def test_the_error_says_row_column_and_kind(name: str, value: str, words: str) -> None:
    found = error_of(12, **{name: value})
    assert found.startswith(f"{WHERE} (event 12) has {words}")
    assert "secret" not in found
    assert error_of(0, **{name: value}).startswith(f"{WHERE} has {words}")


def test_a_row_without_a_column_or_key_is_named_as_far_as_it_can_be() -> None:
    assert "in column id of type integer" in error_of(5, id="null")
    (reader,) = [error_of(5, **{"d": '"2026-01-01"}, {"'})]
    assert reader.startswith("the row of public.t with id None, a b None (event 5) does not fit")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "deletes"), [("delta", SOFT), ("iceberg", HARD)])
def test_a_value_that_does_not_fit_stops_runs_and_checks_until_it_is_mended(
    request: pytest.FixtureRequest, kind: str, deletes: Deletes
) -> None:
    lake: LakeReplication = request.getfixturevalue(kind)
    lake.keep(deletes)
    lake.sql("create table t (id int primary key, d date); insert into t values (1, 'infinity')")
    lake.capture("public.t")
    lake.tick()
    where = "the row of public.t with id {} has infinity in column d of type date"

    def stands_apart(number: int) -> None:
        (apart,) = lake.run()
        assert isinstance(apart, Apart)
        assert where.format(number) in re.sub(r" \(event \d+\)", "", apart.reason)

    stands_apart(1)
    lake.sql("update t set d = '2026-01-01'")
    lake.repair()
    lake.catch_up()
    lake.sql("insert into t values (2, 'infinity')")
    found = lake.verify()
    assert not found.is_equal
    assert "with id 2" in str(found.why_not)
    for _ in range(2):
        lake.tick()
        stands_apart(2)
        # The copy that repairs finds the row as well.
        lake.repair()
    lake.follow("update t set d = '2026-01-02'")
    assert lake.verify().is_equal

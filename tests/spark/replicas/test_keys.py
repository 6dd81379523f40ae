"""Values of each type are the same on each way into a replica, and as keys find their rows."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from pgque_dagster.client.replicas.deletes import HARD, MARKS
from tests.support.queues.type_values import ODD, OTHER, SETUP, settings
from tests.support.queues.type_values import VALUES as TYPE_VALUES
from tests.support.replicas.replication import PostgresReplication, Replication, with_columns_of

TYPES = (
    "date", "timestamp", "timestamptz", "numeric(10,3)", "uuid", "boolean", "smallint", "char(4)",
    "varchar(9)", "bigint", "mood", "bytea", "numeric", "interval", "inet", "time", "int[]",
    "int4range", "small",
)  # fmt: skip
VALUES = (
    "'2026-01-01', '2026-01-01 00:00:00.000001', '2026-01-01 00:00:00.000001+01', 1, {id}, true, 1,"
    " 'a', 'a ', 1, 'sad', '\\x00ff', 1.50, '1 mon', '10.0.0.1/8', '23:00', '{{1,null}}',"
    " '[1,3)', 7",
    "'1500-02-03', '1500-02-03 01:02:03.9', '1500-02-03 01:02:03.9+00', -0.001, {id}, false,"
    " -32768, '', '', -9223372036854775808, 'fine', '', -1e9, '-1 day', '::1', '0:00', '{{}}',"
    " 'empty', 8",
    "'9999-12-31', '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59+00', 9999999.999, {id},"
    " true, 32767, 'abcd', 'a', 9223372036854775807, 'sad', '\\x00', 1e-9, '0', '10.0.0.1', '1:00',"
    " '[2:2]={{1}}', '(,)', 9",
)
UUID = "'80000000-0000-0000-0000-00000000000f'"
TEXTS = (
    "null", "NULL", "", " ", "None", "'", '"', "\\", "\\N", "a" * 40, "a" * 39 + "b",
    "\U0010ffff" * 20, "ß" * 20, "é", "e\u0301", "1", "01", "true", "\t\n", "{}", "[null]", "%",
    "\u2028", "\ufeffx", "A", "a", "a ", "x" * 9000,
)  # fmt: skip


@pytest.fixture(
    params=[
        *((kind, HARD) for kind in ("delta", "iceberg", "postgres")),
        *(pytest.param(("postgres", x), marks=pytest.mark.slow) for x in MARKS if x != HARD),
    ],
    ids="-".join,
)
def replicas(request: pytest.FixtureRequest) -> Replication:
    """Replicas in each format, and in PostgreSQL with deleted rows treated in each way."""
    kind, deletes = request.param
    found: Replication = request.getfixturevalue(kind)
    found.keep(deletes)
    return found


def check(replicas: Replication) -> None:
    replicas.catch_up()
    rows, live = replicas.source("public.t"), replicas.live("public.t")
    if isinstance(replicas, PostgresReplication):
        assert with_columns_of(live, rows) == rows
    # In the lake some types are text.
    assert len(live) == len(rows)


@pytest.mark.in_the_lake
def test_a_key_of_all_types_finds_its_row(replicas: Replication) -> None:
    first, second, third = (f"({each.format(id=UUID)}, 'v')" for each in VALUES)
    columns = ", ".join(f'"Key {n}" {kind}' for n, kind in enumerate(TYPES))
    names = ", ".join(f'"Key {n}"' for n in range(len(TYPES)))
    replicas.sql(
        f"create type mood as enum ('sad', 'fine'); create domain small as smallint;"
        f"create table t ({columns}, v text, primary key ({names}));"
        f"insert into t values {first}, {second}"
    )
    replicas.capture("public.t")
    check(replicas)
    replicas.sql(
        f"""update t set v = 'x' where "Key 9" = 1; delete from t where "Key 6" < 0;"""
        f"insert into t values {third}"
    )
    check(replicas)
    replicas.sql(f"update t set v = v || 'y'; insert into t values {second}")
    replicas.repair()
    check(replicas)
    assert replicas.verify().is_equal


def test_odd_texts_are_keys_like_others(replicas: Replication) -> None:
    replicas.begin("create table t (k text primary key, v text)")
    with replicas.connect() as db:
        db.cursor().executemany("insert into t values (%s, %s)", [(k, k) for k in TEXTS])
    check(replicas)
    with replicas.connect() as db:
        for key in TEXTS[::2]:
            db.execute("update t set v = 'u' || v where k = %s", [key])
        for key in TEXTS[1::4]:
            db.execute("delete from t where k = %s", [key])
    check(replicas)
    replicas.sql("update t set k = k || 'x'")
    check(replicas)
    assert replicas.verify().is_equal
    assert len(replicas.copied) == 1


def test_a_key_may_change_to_an_equal_one_that_prints_differently(replicas: Replication) -> None:
    replicas.sql(
        "create table t (n numeric, i interval, v text, primary key (n, i));"
        "insert into t values (1.0, '1 mon', 'a'), (2, '1 day', 'b'), (3, '1 day', 'c')"
    )
    replicas.capture("public.t")
    check(replicas)
    replicas.sql(
        "update t set n = 1.00, i = '30 days' where n = 1; delete from t where n = 2;"
        "insert into t values (2.000, '24:00', 'd'); update t set v = 'e' where n = 2"
    )
    assert replicas.verify().is_equal
    check(replicas)
    found = sorted((str(row["n"]), row["v"]) for row in replicas.live("public.t"))
    assert found == [("1.00", "a"), ("2.000", "e"), ("3", "c")]
    replicas.sql("update t set n = n * 1.0")
    check(replicas)
    assert len(replicas.copied) == 1


# The lake has no NaN in a decimal, but in a text.
KINDS = {kind: values for kind, values in TYPE_VALUES.items() if kind != "xml"}
TYPE_COLUMNS = [(f"d{n}", n, kind) for n, kind in enumerate(KINDS)]


def values_of(replication: Replication, ids: range) -> list[str]:
    """The rows, as texts, because no NaN equals another."""
    rows = [row for row in replication.replica("public.t") if row["id"] in ids]
    return sorted(repr({**row, "id": row["id"] % 10}) for row in rows)


def test_a_value_is_the_same_by_copy_event_verify_and_repair(replication: Replication) -> None:
    domains = "".join(
        f"create domain d{n} as {kind}; create domain dd{n} as d{n} not null;"
        for n, kind in enumerate(KINDS)
    )
    columns = ", ".join(f"{name} dd{n}" for name, n, _ in TYPE_COLUMNS)
    replication.sql(
        f"{SETUP}{domains} create table t (id int primary key, plain boolean, list d0[], {columns})"
    )
    for number in range(2):
        texts = (f"$q${values[min(number, len(values) - 1)]}$q$" for values in KINDS.values())
        replication.sql(f"insert into t values ({number}, true, '{{7,8}}', {', '.join(texts)})")
    database = conninfo_to_dict(replication.url)["dbname"]
    # ADBC recognizes no type in a session that quotes all names.
    for name, value in ODD.items() - {("quote_all_identifiers", "on")}:
        replication.sql(f"alter database {database} set {name} = {value}")
    replication.capture("public.t")
    replication.catch_up()
    copied = values_of(replication, range(10))
    assert len(copied) == 2
    names = ", ".join(name for name, *_ in TYPE_COLUMNS)
    again = f"insert into public.t select id + {{}}, plain, list, {names}"
    replication.sql(f"{settings(OTHER)}; {again.format(10)} from public.t where id < 10")
    assert replication.verify().is_equal
    replication.catch_up()
    assert values_of(replication, range(10, 20)) == copied
    replication.sql(
        f"set session_replication_role = replica; {again.format(30)} from public.t where id < 10;"
        "delete from public.t where id = 10; update public.t set d0 = 9 where id = 0"
    )
    assert replication.verify().differences == 4
    replication.repair()
    replication.catch_up()
    assert values_of(replication, range(30, 40)) == copied
    assert replication.verify().is_equal
    assert len(replication.copied) == 2

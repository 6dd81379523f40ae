"""Replicas of tables whose columns have names that mean something elsewhere."""

import psycopg
import pytest
from psycopg import sql

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas.capture import capture_new
from pgque_dagster.client.replicas.deletes import Deletes
from pgque_dagster.client.replicas.postgres.location import PostgresReplicas
from pgque_dagster.client.replicas.source import SourceColumn, SourceTable, expanded
from pgque_dagster.client.replicas.spec import TableSpec
from pgque_dagster.spark.replicas.location import DeltaReplicas, IcebergReplicas
from tests.support.replicas.replication import QUEUE, PostgresReplication, Replication

# Words of SQL and of our queries, of events, of Spark, of Delta and of Parquet.
WORDS = (
    "select order user pgque_row pgque_row2 ours pgque_text pgque_change t s e o r n d stored"
    " excluded key row operation table ev_id ev_type ev_data ev_extra1 ev_txid ev_retry hash"
    " count value element kind found source target index col f0 _pgque_0 _pgque_id _pgque_reason"
    " _metadata _change_type _commit_version __index_level_0__ 1 null true"
)
ODD = (
    " ", " a", "a b", "a*", "a,b", "a;b", "a=b", "(x)", "{x}", "{}", "[0]", "%s", "%(a)s", "$1",
    "'", "#", "/", ":", "?", "&", "<>", "--", "/*", "|", "!", "~", "+", "@", "é", "e\u0301", "日本",
    "🐘", "\u2028", "\u00a0", "\u200b", "x" * 63, "é" * 31,
)  # fmt: skip
# What the lake refuses.
ODDER = ("*", ".", "a.*", "`", '"', "\\", "\n", "\x7f", "A", "a", "_file")
KEY = ("key", "ev_id", "a b")
SPEC = TableSpec("public.t", mask={"'": "sha256", "a;b": "sha256"}, exclude=["a,b"])


@pytest.mark.parametrize(
    ("kind", "deletes"),
    [
        ("iceberg", "hard"),
        ("postgres", "history"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                *(("delta", "hard"), ("delta", "soft")),
                *(("postgres", "hard"), ("postgres", "soft")),
            )
        ),
    ],
)
def test_columns_may_have_names_that_mean_something_elsewhere(
    request: pytest.FixtureRequest, kind: str, deletes: Deletes
) -> None:
    replication: Replication = request.getfixturevalue(kind)
    odder = ODDER if kind == "postgres" else ()
    names = (*WORDS.split(), *ODD, *odder)
    columns = sql.SQL(", ").join(
        sql.SQL("{} int not null" if name in KEY else "{} text").format(sql.Identifier(name))
        for name in names
    )

    def insert(number: int) -> sql.Composed:
        values = (sql.Literal(number if name in KEY else f"{name} {number}") for name in names)
        return sql.SQL("insert into t values ({})").format(sql.SQL(", ").join(values))

    replication.keep(deletes)
    with replication.connect() as db:
        key = sql.SQL(", ").join(map(sql.Identifier, KEY))
        db.execute(sql.SQL("create table t ({}, primary key ({}))").format(columns, key))
        db.execute(insert(1))
        db.execute(insert(2))
        replication.capture(SPEC)
        replication.catch_up()
        db.execute(insert(3))
        db.execute("update t set \"a=b\" = 'new' where key = 2")
        db.execute("delete from t where key = 1")
        replication.catch_up()
        live = sorted(replication.live("public.t"), key=lambda row: int(row["key"]))
        assert [(row["key"], row["a=b"]) for row in live] == [(2, "new"), (3, "a=b 3")]
        assert {(name, row[name]) for row in live for name in odder} == {
            (name, f"{name} {number}") for number in (2, 3) for name in odder
        }
        db.execute("set session_replication_role = replica; update t set \"a=b\" = 'x'")
        found = replication.verify(SPEC)
    assert sorted(tuple(each.key.items()) for each in found.examples) == [
        tuple((name, number) for name in KEY) for number in (2, 3)
    ]


def a_table(*columns: str) -> SourceTable:
    found = tuple(SourceColumn(name, "int", None) for name in columns)
    return SourceTable("public.t", ("public", "t"), found, ("id",), "", TableSpec("public.t"))


@pytest.mark.parametrize(
    "columns",
    [*([name] for name in ODDER if name not in ("A", "a", "\x7f", "_file")),
     # Names that Java takes for one.
     ["a", "A"], ["k", "\u212a"], ["s", "\u017f"], ["i", "İ"], ["i", "\u0131"], ["Σ", "ς"]],
)  # fmt: skip
def test_names_that_the_lake_cannot_have_are_refused(columns: list[str]) -> None:
    for target in (DeltaReplicas("lake"), IcebergReplicas("lake")):
        with pytest.raises(InvalidArgument, match="a name that the lake cannot have"):
            target.check(a_table("id", *columns))


def test_names_of_iceberg_are_refused_in_iceberg_alone() -> None:
    DeltaReplicas("lake").check(a_table("id", "_file"))
    with pytest.raises(InvalidArgument, match=r"column _FILE of public\.t"):
        IcebergReplicas("lake").check(a_table("id", "_FILE"))


@pytest.mark.parametrize(("deletes", "most"), [("hard", 1599), ("soft", 1599), ("history", 1598)])
def test_more_columns_than_a_replica_can_have_are_refused(deletes: Deletes, most: int) -> None:
    target = PostgresReplicas(schema="copies", deletes=deletes)
    target.check(a_table(*(f"c{number}" for number in range(most))))
    with pytest.raises(InvalidArgument, match=f"has at most {most}. Leave out columns"):
        target.check(a_table(*(f"c{number}" for number in range(most + 1))))


@pytest.mark.slow
def test_a_table_with_the_most_columns_is_replicated(postgres: PostgresReplication) -> None:
    columns = ", ".join(f"c{number} smallint" for number in range(1598))
    postgres.begin(f"create table t (id int primary key, {columns}); insert into t values (1, 1)")
    postgres.sql("insert into t values (2, 2); update t set c1597 = 7")
    assert postgres.verify().is_equal
    postgres.follow_and_check()
    assert postgres.verify().is_equal
    postgres.there("update t set c1597 = 8 where id = 1")
    assert postgres.verify().differences == 1


def test_our_names_are_refused_in_any_case_unless_they_are_left_out(queue_url: str) -> None:
    with psycopg.connect(queue_url, autocommit=True) as db:
        db.execute('create table t (id int primary key, "__PGQUE_deleted" int)')
    with Client(queue_url) as client:
        with pytest.raises(InvalidArgument, match="leave it out by exclude"):
            SourceTable.find(client, "t")
        SourceTable.find(client, TableSpec("public.t", exclude=["__PGQUE_deleted"]))


def test_a_table_that_the_target_cannot_have_is_not_captured(queue_url: str) -> None:
    with psycopg.connect(queue_url, autocommit=True) as db:
        db.execute(
            'create table t (id int primary key, "*" int); create table u (id int primary key)'
        )
        check = DeltaReplicas("lake").check
        with Client(queue_url) as client:
            with pytest.raises(InvalidArgument, match=r"column \* of public\.t"):
                capture_new(client, QUEUE, ["public.t", "public.u"], check)
            found = expanded(client, ["public.*"], check)
        assert [spec.source for spec in found.specs] == ["public.u"]
        assert "column *" in found.left_out["public.t"]
        captured = db.execute("select table_name from pgque.captured_tables()").fetchall()
        assert captured == [("public.u",)]

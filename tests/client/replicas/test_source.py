"""Tables as the source of replicas: those that one could differ from unseen are refused."""

from collections.abc import Iterator

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument, PermissionDenied
from pgque_dagster.client.replicas.capture import captured_tables
from pgque_dagster.client.replicas.source import SourceTable

TABLE = "create table t (id int primary key)"
LOGIN = "t_secured"


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("select pgque.create_queue('q')")
        yield connection


def test_only_tables_that_inherit_now_count(db: psycopg.Connection, database_url: str) -> None:
    db.execute(f"{TABLE}; create table c (primary key (id)) inherits (t)".encode())
    with Client(database_url) as client:
        with pytest.raises(InvalidArgument, match="because it has tables that inherit it"):
            SourceTable.find(client, "t")
        with pytest.raises(InvalidArgument, match=r"because it inherits public\.t"):
            SourceTable.find(client, "c")
        db.execute("drop table c")
        assert db.execute(
            "select relhassubclass from pg_class where oid = 't'::regclass"
        ).fetchall() == [(True,)]
        SourceTable.find(client, "t")


def test_an_unlogged_partition_is_named(db: psycopg.Connection, database_url: str) -> None:
    db.execute(f"{TABLE} partition by list (id)".encode())
    db.execute("create unlogged table p2 partition of t for values in (2)")
    with Client(database_url) as client:
        with pytest.raises(InvalidArgument, match="because it has an unlogged partition"):
            SourceTable.find(client, "t")
        db.execute("alter table p2 set logged")
        SourceTable.find(client, "t")


def test_a_table_that_sends_changes_under_anothers_name_is_named(
    db: psycopg.Connection, database_url: str
) -> None:
    db.execute(f"{TABLE}; select pgque.capture('t', 'q'); alter table t rename to p2".encode())
    db.execute(f"{TABLE}; select pgque.capture('t', 'q')".encode())
    with Client(database_url) as client:
        with pytest.raises(InvalidArgument) as refused:
            captured_tables(client, "q")["public.t"].check()
        assert "select pgque.uncapture('public.p2', 'q')" in str(refused.value)
        db.execute("select pgque.uncapture('public.p2', 'q')")
        captured = captured_tables(client, "q")["public.t"]
        captured.check()
        assert captured.problem is None


def test_a_policy_that_may_hide_rows_is_named_before_anything_is_read(
    db: psycopg.Connection, database_url: str
) -> None:
    db.execute(f"create role {LOGIN}; grant pgque_writer to {LOGIN}".encode())
    db.execute(f"grant create on schema public to {LOGIN}; set role {LOGIN}".encode())
    try:
        db.execute(f"{TABLE}; alter table t enable row level security".encode())
        with Client(db) as client:
            SourceTable.find(client, "t")
            db.execute("alter table t force row level security")
            with pytest.raises(PermissionDenied) as refused:
                SourceTable.find(client, "t")
        told = str(refused.value)
        assert f"alter role {LOGIN} bypassrls" in told
        way_out = told[told.index("alter table") : told.index(";", told.index("alter table"))]
        db.execute(way_out.encode())
        with Client(db) as client:
            SourceTable.find(client, "t")
    finally:
        db.execute(f"reset role; drop owned by {LOGIN}; drop role {LOGIN}".encode())

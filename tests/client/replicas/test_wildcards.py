"""Which tables names with `*` stand for, and which of them are left out."""

import psycopg
import pytest

from pgque_dagster.client import Client, InvalidArgument
from pgque_dagster.client.replicas.capture import capture_new, captured_tables
from pgque_dagster.client.replicas.source import expanded
from pgque_dagster.client.replicas.spec import TableSpec

TABLES = """
create schema billing;
create table billing.a_1 (id int primary key);
create table billing."A2" (id int primary key) partition by range (id);
create table billing.part partition of billing."A2" default;
create view billing.seen as select 1;
create table billing.ab1 (id int primary key);
create table billing.keyless (id int);
create table billing.odd (id int primary key);
create unlogged table billing.u (id int primary key);
create schema "My billing";
create table "My billing".t (id int primary key);
"""


@pytest.fixture
def client(database_url: str) -> Client:
    """A client of a database with tables of several kinds."""
    with psycopg.connect(database_url, autocommit=True) as db:
        db.execute(TABLES.encode())
    return Client(database_url)


def refuse_odd(table: TableSpec) -> None:
    if table.path[1] == "odd":
        raise InvalidArgument("the target cannot have it")


def test_a_wildcard_leaves_out_what_cannot_be_replicated_and_says_why(client: Client) -> None:
    with client:
        found = expanded(client, ["billing.*"], refuse_odd)
    assert [each.source for each in found.specs] == [
        'billing."A2"',
        "billing.a_1",
        "billing.ab1",
    ]
    reasons = {"billing.keyless": "no key", "billing.odd": "target", "billing.u": "unlogged"}
    assert found.left_out.keys() == reasons.keys()
    for table, words in reasons.items():
        assert words in found.left_out[table]


def test_an_underscore_stands_for_itself(client: Client) -> None:
    with client:
        (found,) = expanded(client, ["billing.a_*"]).specs
    assert found.source == "billing.a_1"


def test_a_table_that_is_named_besides_is_there_once_as_it_is_named(client: Client) -> None:
    named = TableSpec("billing.ab1", exclude=["x"])
    with client:
        found = expanded(client, ["billing.a_*", '"billing".*1', '"My billing".*', named])
    assert found.specs[0] == named
    assert {each.source for each in found.specs[1:]} == {"billing.a_1", '"My billing".t'}
    assert len(found.specs) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("billing.z*", "no table of database"),
        ("*.t", "of one schema"),
        (TableSpec("billing.*", exclude=["x"]), "options for columns"),
        ("billing.key*", "no table can be replicated: .* no key"),
        ("t*", "not a schema and a table"),
    ],
)
def test_a_wildcard_that_stands_for_nothing_is_refused(
    client: Client, name: str | TableSpec, words: str
) -> None:
    with client, pytest.raises(InvalidArgument, match=words):
        expanded(client, [name])


def test_one_table_that_is_refused_stops_the_capture_of_no_other(client: Client) -> None:
    with client:
        client.create_queue("q")
        with pytest.raises(InvalidArgument, match=r"keyless has no key.* is unlogged"):
            capture_new(client, "q", ["billing.keyless", "billing.u", "billing.ab1"])
        assert captured_tables(client, "q").keys() == {"billing.ab1"}

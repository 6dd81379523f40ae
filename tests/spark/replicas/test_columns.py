"""Replicas without some columns, or with hashes in them."""

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.source_tables import SourceTable
from pgque_dagster.client.table_spec import TableSpec
from tests.support.replication import Replication, rows_of

TABLE = (
    "create table t (id int primary key, email text, notes text, born date, amount numeric(9,2),"
    " big bigint, at timestamptz, f float8)"
)
MASKED = ("email", "born", "amount", "big", "at")
SPEC = TableSpec("public.t", ["notes"], dict.fromkeys(MASKED, "sha256"))
# A time is hashed as JSON has it.
TEXTS = {"at": """to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS+00:00')"""}
HASHES = (
    f"encode(sha256(convert_to({TEXTS.get(x, x + '::text')}, 'UTF8')), 'hex') as {x}"
    for x in MASKED
)
EXPECTED = f"(select id, f, {', '.join(HASHES)} from t) t"


def test_columns_are_left_out_or_masked_in_copies_and_changes(replication: Replication) -> None:
    replication.sql(
        f"{TABLE}; insert into t values (1, 'a@b', 'secret', '2000-01-01', 1.50, 10000000000,"
        " '2026-01-01 12:00+00', 0.1), (2, null, null, null, null, null, null, null)"
    )
    replication.capture(SPEC)
    replication.catch_up()
    assert replication.replica("public.t") == rows_of(replication.url, EXPECTED)
    replication.sql(
        "update t set email = 'c@d', f = 0.3 where id = 2; delete from t where id = 1;"
        "insert into t values (3, 'täb\\t', 'x', '0044-03-15 BC', -0.01, -1,"
        " '2026-01-02 03:04:05+00', -0.0)"
    )
    assert replication.verify(SPEC).is_equal
    replication.catch_up()
    assert replication.replica("public.t") == rows_of(replication.url, EXPECTED)
    assert replication.verify(SPEC).is_equal
    assert len(replication.copied) == 1
    replication.sql("set session_replication_role = replica; update t set big = 7 where id = 2")
    assert replication.verify(SPEC).differences == 1


def test_other_columns_have_the_table_copied_again(replication: Replication) -> None:
    replication.sql(f"{TABLE}; insert into t (id, email, notes) values (1, 'a', 'x')")
    replication.capture(SPEC)
    replication.catch_up()
    for spec in (TableSpec("public.t", ["email"]), "public.t"):
        replication.tables = [spec]
        assert "left out or masked" in (replication.verify(spec).why_not or "")
        replication.sql("insert into t (id) select max(id) + 1 from t")
        replication.catch_up()
        assert replication.verify(spec).is_equal
    replication.check()
    assert len(replication.copied) == 3


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (TableSpec("t", ["id"]), "part of the key"),
        (TableSpec("t", mask={"id": "sha256"}), "part of the key"),
        (TableSpec("t", ["missing"]), "no column missing"),
        (TableSpec("t", mask={"missing": "sha256"}), "no column missing"),
        (TableSpec("t", mask={"email": "md5"}), "no mask 'md5'"),
        (TableSpec("t", ["email"], {"email": "sha256"}), "twice"),
        (TableSpec("t", "email"), "not a list"),
        (TableSpec("t", mask={"f": "sha256"}), "cannot be masked"),
    ],
)
def test_what_cannot_be_left_out_or_masked_is_refused(
    queue_url: str, spec: TableSpec, words: str
) -> None:
    with psycopg.connect(queue_url, autocommit=True) as db:
        db.execute(TABLE)
    with Client(queue_url) as client, pytest.raises(InvalidArgument, match=words):
        SourceTable.find(client, spec)

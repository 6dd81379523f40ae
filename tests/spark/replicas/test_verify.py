"""Verification finds each difference between a table and its replica, and no other.

`PGQUE_CHECKS=334` sets how many checks the slow test takes for each kind of replica. So many in the
lake need an hour: `--timeout 7200`.
"""

import json
import os
import random
import time
from collections import Counter

import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas import parts
from pgque_dagster.client.replicas.key_parts import due_parts
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import LakeReplication, Replication
from tests.support.replicas.writers import SCHEMA, TABLES, Writers

CHECKS = int(os.environ.get("PGQUE_CHECKS") or 20)
COLUMNS = "id int primary key, name text, v numeric(10,2), at timestamptz, data bytea"


def test_each_fault_of_one_cell_is_found_and_nothing_else(replication: Replication) -> None:
    replication.begin(
        f"create table t ({COLUMNS}); insert into t select n, 'n' || n, n, "
        "'2026-01-01'::timestamptz + n * interval '1 hour', '\\x00ff' "
        "from generate_series(1, 1000) n"
    )
    assert replication.verify().is_equal
    replication.sql("update t set name = null, data = null, at = null where id % 7 = 0")
    assert replication.verify().is_equal, "changes that wait are applied before it compares"
    replication.catch_up()
    chance = random.Random(1)
    faults = (
        "name = 'x'", "name = null", "v = v + 0.01", "v = null", "at = null",
        "at = '2027-01-01'", "data = '\\x00'", "data = null",
    )  # fmt: skip
    ids = chance.sample([n for n in range(1, 1001) if n % 7], 100)
    with replication.connect() as db:
        db.execute("set session_replication_role = replica")
        for key in ids:
            db.execute(f"update t set {chance.choice(faults)} where id = {key}".encode())
    found = replication.verify()
    assert (found.differences, found.rows, found.why_not) == (100, 1000, None)
    assert {example.kind for example in found.examples} == {"different"}
    assert {example.key["id"] for example in found.examples} <= set(ids)


@pytest.mark.parametrize("kind", [pytest.param("delta", marks=pytest.mark.slow), "postgres"])
def test_each_row_is_in_one_part_and_so_is_each_difference(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "WHOLE_BYTES", -1)
    replication: Replication = request.getfixturevalue(kind)
    replication.begin(
        "create table t (s smallint, i int, n numeric(20), u uuid, c varchar(9), k text,"
        " at timestamptz, v float8, primary key (s, i, n, u, c, k, at));"
        "insert into t select -n, n * -7, n * 1e17, md5(n::text)::uuid, chr(n + 200), "
        "E'\\t,\U0010ffff \u00e9e\u0301' || repeat(' ', n % 3), '2026-01-01', n"
        " from generate_series(1, 200) n"
    )
    replication.sql("update t set i = i - 1 where i < -1000; delete from t where s = -1")
    with Client(replication.url) as client:
        found = due_parts(client, TableSpec("public.t"), 0.5, (), whole=True)
    equal = [replication.verify(part=part) for part in found]
    assert [each.differences for each in equal] == [0, 0]
    assert sum(each.rows for each in equal) == 199
    assert min(each.rows for each in equal) > 50

    replication.sql(
        "set session_replication_role = replica; update t set v = 0 where s = -2;"
        "delete from t where s = -3; update t set k = 'new' where s = -4"
    )
    differing = [replication.verify(part=part) for part in found]
    kinds = sorted(example.kind for each in differing for example in each.examples)
    assert kinds == ["different", "extra", "extra", "missing"]
    assert sum(each.differences for each in differing) == 4


@pytest.mark.in_the_lake
def test_rows_that_are_missing_or_too_many_are_named(replication: Replication) -> None:
    replication.begin("create table t (id int primary key); insert into t values (1), (2)")
    replication.sql(
        "set session_replication_role = replica; delete from t where id = 1;"
        "insert into t values (3)"
    )
    found = replication.verify()
    examples = {each.kind: each for each in found.examples}
    (there,), (here,) = examples["extra"].there, examples["missing"].here
    assert [int(json.loads(row)["id"]) for row in (there, here)] == [1, 3]
    assert [examples["extra"].key, examples["missing"].key] == [{"id": 1}, {"id": 3}]
    assert (examples["extra"].here, examples["missing"].there) == ((), ())


def test_what_cannot_be_compared_says_why(replication: Replication) -> None:
    replication.sql("create table t (id int primary key); insert into t values (1)")
    replication.capture("public.t")
    assert "not been copied" in (replication.verify().why_not or "")
    replication.catch_up()
    replication.sql("alter table t add c int")
    assert "altered" in (replication.verify().why_not or "")
    replication.catch_up()
    assert replication.verify().is_equal
    replication.sql("alter table t disable trigger all")
    assert "disabled" in (replication.verify().why_not or "")


def test_a_table_that_was_compacted_is_compared_and_followed(lake: LakeReplication) -> None:
    lake.sql("create table t (id int primary key)")
    lake.capture("public.t")
    for number in range(3):
        lake.follow(f"insert into t values ({number})")
    assert lake.sink("public.t").maintain(lake.spark, lake.url).by == 1
    assert len(lake.files("public.t")) == 1
    lake.sql("insert into t values (4); delete from t where id = 1")
    kept = lake.spark.sparkContext._jsc.getPersistentRDDs
    before = kept().size()
    assert lake.verify().is_equal
    assert kept().size() <= before, "executors keep nothing"
    lake.follow_and_check()
    assert len(lake.copied) == 1


def test_values_that_move_between_columns_are_found(replication: Replication) -> None:
    replication.begin(
        "create table t (id int primary key, a text, b text, f float8);"
        "insert into t values (1, 'x', null, 0), (2, null, 'y', 0)"
    )
    replication.sql(
        "set session_replication_role = replica; update t set a = b, b = a where id = 1"
    )
    (found,) = replication.verify().examples
    assert [json.loads(row)["b"] for row in (*found.here, *found.there)] == ["x", None]
    replication.sql("set session_replication_role = replica; update t set f = '-0' where id = 2")
    assert replication.verify().differences == 2


def test_a_time_as_a_key_is_shown_in_utc_in_any_zone(
    lake: LakeReplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    lake.begin(
        "create table t (at timestamptz primary key, v int);"
        "insert into t values ('0001-01-01 02:00+00', 1), ('2026-11-01 05:30+00', 2),"
        "('2026-11-01 06:30+00', 3)"
    )
    lake.sql("set session_replication_role = replica; update t set v = 9 where v <> 2")
    first, second = sorted(lake.verify().examples, key=lambda each: str(each.key))
    monkeypatch.undo()
    time.tzset()
    assert first.key == {"at": "0001-01-01 02:00:00"}
    assert second.key == {"at": "2026-11-01 06:30:00"}
    assert [json.loads(row)["v"] for row in (*second.here, *second.there)] == ["9", "3"]


def test_rows_that_are_there_twice_are_found_and_repaired(lake: LakeReplication) -> None:
    lake.begin("create table t (id int primary key); insert into t values (1)")
    lake.repeat_rows("public.t")
    (found,) = lake.verify().examples
    assert (found.kind, found.key) == ("repeated", {"id": 1})
    assert (len(found.here), len(found.there)) == (1, 2)
    lake.repair()
    lake.tick()
    (done,) = lake.run()
    assert done.written is None, "all rows are written"
    lake.check()


@pytest.mark.slow
def test_checks_beside_writers_and_batches_raise_no_false_alarm(replication: Replication) -> None:
    chance, found = random.Random(3), Counter[str]()
    replication.begin(SCHEMA, *TABLES)
    writers = Writers(replication.url, "checks")
    with writers.running():
        for number in range(CHECKS):
            writers.grant(3)
            if number % 3 == 0:
                try:
                    replication.catch_up()
                except InvalidArgument as error:  # A writer truncated a table that was copied.
                    assert "altered or truncated while it was copied" in str(error)
            verified = replication.verify(chance.choice(TABLES))
            assert not verified.differences, verified
            found[verified.why_not or "equal"] += 1
    assert found["equal"] > CHECKS / 2, found

"""A table whose files or labels changed is not copied, but compared, and copied if rows differ."""

from datetime import timedelta

import psycopg
import pytest

from pgque_dagster.client import Client
from pgque_dagster.client.replicas import parts
from pgque_dagster.client.replicas.deletes import HISTORY, SOFT, Deletes
from pgque_dagster.client.replicas.outcome import Replicated
from pgque_dagster.client.replicas.status import ReplicaStatus
from pgque_dagster.client.replicas.verify import Verification, compare_and_record
from tests.support.replicas.parts import copy_in_parts
from tests.support.replicas.replication import QUEUE, Replication

T = "public.t"
TABLE = (
    "create type mood as enum ('sad', 'fine'); create type pair as (x int, y int);"
    "create table t (id int primary key, v text, m mood, p pair, ms mood[]);"
    "create index t_v on t (v);"
    "insert into t select n, 'first', (array['sad', 'fine'])[1 + n % 2]::mood, row(n, n)::pair,"
    " '{sad}' from generate_series(1, 20) n"
)
RENAMED = "alter type mood rename value 'sad' to 'gloomy'"
TRUNCATED = "set session_replication_role = replica; truncate t"
FILES = "its files were rewritten"
slow = pytest.mark.slow


def begin(replication: Replication) -> None:
    replication.begin(TABLE, T)
    replication.copied.clear()


def run(replication: Replication, script: str) -> None:
    """Runs statements, each in a transaction of its own."""
    with psycopg.connect(replication.url, autocommit=True) as db:
        for statement in script.split("; "):
            db.execute(statement.encode())


def alter(replication: Replication, script: str) -> Replicated:
    """Changes rows before a script, with it and after, all in one batch."""
    run(replication, "update t set v = 'before' where id = 1; delete from t where id = 2")
    run(replication, f"insert into t (id, m) values (21, 'sad') on conflict do nothing; {script}")
    run(
        replication,
        "insert into t (id, m, ms) values (30, 'fine', '{fine}') on conflict do nothing",
    )
    run(replication, "update t set v = 'after' where id in (3, 21); delete from t where id = 5")
    return follow(replication)


def follow(replication: Replication) -> Replicated:
    """Applies all batches. Returns what the first did."""
    replication.tick()
    (done,) = replication.run()
    assert isinstance(done, Replicated)
    replication.catch_up()
    return done


def status(replication: Replication) -> ReplicaStatus:
    with Client(replication.url) as client:
        (found,) = client.replicas(QUEUE)
        return found


def compare(replication: Replication, share: float = 1) -> Verification:
    with Client(replication.url) as client:
        return compare_and_record(
            *(client, QUEUE, replication.consumer, T),
            lambda part: replication.verify(T, part),
            timedelta(minutes=5),
            share,
        )


@pytest.mark.parametrize(
    "script",
    [
        "vacuum full t",
        pytest.param("cluster t using t_v", marks=slow),
        pytest.param("alter table t set unlogged; alter table t set logged", marks=slow),
        pytest.param("alter type pair rename attribute x to z", marks=slow),
    ],
)
def test_a_table_that_is_the_same_is_compared_and_not_copied(
    replication: Replication, script: str
) -> None:
    begin(replication)
    done = alter(replication, script)
    why = status(replication).doubt
    assert why == ("a composite type has other attributes" if "type" in script else FILES)
    assert (done.reason, done.doubt, status(replication).state) == (None, why, "may differ")
    replication.check()
    run(replication, "update t set v = 'later' where id = 4")
    replication.catch_up()
    assert status(replication).doubt == why
    assert compare(replication).is_equal
    assert (status(replication).state, status(replication).doubt) == ("equal", None)
    assert not any("copying" in text for text in replication.copied)
    assert any(f"they are compared: {why}" in text for text in replication.copied)
    replication.check()


@pytest.mark.parametrize(
    "script",
    [
        TRUNCATED,
        pytest.param(RENAMED, marks=slow),
        pytest.param(f"{RENAMED}; vacuum full t", marks=slow),
        pytest.param("alter type pair add attribute z int", marks=slow),
    ],
)
def test_rows_that_differ_have_the_table_copied(replication: Replication, script: str) -> None:
    begin(replication)
    assert alter(replication, script).reason is None
    found = compare(replication)
    assert found.differences
    assert status(replication).state == "different"
    assert "it has not been copied" in str(compare(replication).why_not), "and only once"
    done = follow(replication)
    assert found.problem and f"rows differed: {found.problem}" in str(done.reason)
    assert f"since {found.doubt}: " in found.problem
    replication.check()
    assert compare(replication).is_equal
    assert status(replication).state == "equal"
    assert sum("copying" in text for text in replication.copied) == 1


@slow
def test_a_new_label_changes_no_row(replication: Replication) -> None:
    begin(replication)
    run(replication, "alter type mood add value 'new'")
    assert alter(replication, "update t set m = 'new' where id = 7").reason is None
    assert status(replication).doubt is None
    replication.check()
    assert not any("copying" in text for text in replication.copied)


@slow
@pytest.mark.parametrize("deletes", [SOFT, HISTORY])
@pytest.mark.parametrize("script", [TRUNCATED, RENAMED])
def test_rows_that_are_gone_stay(replication: Replication, script: str, deletes: Deletes) -> None:
    replication.keep(deletes)
    begin(replication)
    alter(replication, script)
    compare(replication)
    replication.follow_and_check()
    assert compare(replication).is_equal
    assert {row["id"] for row in replication.replica(T)} >= {*range(1, 21)}


@slow
def test_a_label_in_the_key_is_mended(replication: Replication) -> None:
    replication.sql("create type mood as enum ('sad', 'fine')")
    replication.begin(
        "create table t (id mood primary key, v int); insert into t values ('sad', 1)", T
    )
    run(replication, f"{RENAMED}; update t set v = 2")
    replication.catch_up()
    assert compare(replication).differences == 1
    replication.follow_and_check()
    assert compare(replication).is_equal


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=slow)])
def test_only_a_comparison_since_the_last_change_counts(postgres: Replication, when: str) -> None:
    begin(postgres)
    if when == "after":
        alter(postgres, "vacuum full t")

    def compare_slowly(part: object) -> Verification:
        found = postgres.verify(T)
        alter(postgres, TRUNCATED) if when == "before" else alter(postgres, "vacuum full t")
        return found

    with Client(postgres.url) as client:
        place = client, QUEUE, postgres.consumer, T
        assert compare_and_record(*place, compare_slowly, timedelta(minutes=5)).is_equal
    assert status(postgres).doubt == FILES
    assert compare(postgres).is_equal == (when == "after")


def test_all_parts_are_compared_once_more(
    postgres: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(postgres)
    monkeypatch.setattr(parts, "WHOLE_BYTES", -1)
    assert compare(postgres, 0.5).is_equal
    alter(postgres, "vacuum full t")
    assert status(postgres).comparing == "0 of 2 parts were compared since the last copy"
    assert compare(postgres, 0.5).is_equal
    assert status(postgres).state == "equal"


@slow
def test_columns_and_labels_that_change_in_one_batch(replication: Replication) -> None:
    begin(replication)
    done = alter(
        replication, f"alter table t rename v to w; alter table t rename w to v; {RENAMED}"
    )
    assert done.reason is None
    assert status(replication).doubt
    compare(replication)
    replication.follow_and_check()


@pytest.mark.parametrize(
    "replication",
    ["postgres", *(pytest.param(lake, marks=slow) for lake in ("delta", "iceberg"))],
    indirect=True,
)
def test_another_type_and_a_volatile_default_are_copied(replication: Replication) -> None:
    begin(replication)
    script = "alter table t alter v type text using v || '!', add r float default random()"
    done = alter(replication, script)
    assert FILES in str(done.reason)
    assert status(replication).doubt is None
    replication.check()


@slow
def test_a_partition_that_is_truncated_alone_loses_its_rows(replication: Replication) -> None:
    replication.sql("create table t (id int primary key) partition by range (id)")
    replication.sql("create table a partition of t for values from (1) to (10)")
    replication.sql("create table b partition of t for values from (10) to (30)")
    replication.begin("insert into t select generate_series(1, 20)", T)
    run(replication, "delete from t where id = 12; truncate a; insert into t values (3)")
    done = follow(replication)
    assert (done.reason, done.doubt) == (None, FILES)
    replication.check()
    assert compare(replication).is_equal


@slow
def test_a_large_table_that_differs_is_copied_in_parts(
    replication: Replication, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(replication)
    more = "insert into t select n, repeat('x', 900), 'sad' from generate_series(100, 300) n"
    run(replication, f"alter table t alter v set storage plain; {more}")
    replication.catch_up()
    copy_in_parts(monkeypatch)
    assert alter(replication, RENAMED).reason is None
    found = compare(replication, 0.34)
    assert found.part and found.problem
    for number in range(20):
        run(replication, f"insert into t (id) values ({number + 1000})")
        replication.tick()
        replication.run()
        if status(replication).is_copied:
            break
    assert number > 1
    replication.catch_up()
    begun = [text for text in replication.copied if text.startswith(f"copying {T} in parts")]
    assert [text.endswith(f"rows differed: {found.problem}") for text in begun] == [True]
    replication.check()
    assert compare(replication, 0.34).is_equal
    assert status(replication).state == "equal"


@slow
def test_a_shape_of_an_earlier_version_has_the_table_copied(postgres: Replication) -> None:
    begin(postgres)
    postgres.sql(
        "update pgque.replica_table set shape ="
        """ (shape::jsonb - 'labels' - 'composites' || '{"types": {"mood": "x"}}')::text"""
    )
    assert "by an earlier version" in str(alter(postgres, RENAMED).reason)
    postgres.check()


@pytest.mark.parametrize(
    "script",
    [
        "vacuum full p1; ",
        pytest.param("alter type mood rename value 'sad' to 'gloomy'; ", marks=slow),
    ],
)
def test_a_table_may_differ_still_after_a_partition_went(
    replication: Replication, script: str
) -> None:
    replication.begin(
        "create type mood as enum ('sad', 'fine');"
        "create table t (id int primary key, m mood) partition by range (id);"
        "create table p1 partition of t for values from (0) to (10);"
        "create table p2 partition of t for values from (10) to (20);"
        "insert into t values (1, 'sad'), (11, 'fine')",
        T,
    )
    run(replication, f"{script}insert into t values (2, 'fine')")
    follow(replication)
    why = status(replication).doubt
    assert why

    replication.copied.clear()
    run(replication, "drop table p2; insert into t values (3, 'fine')")
    follow(replication)

    assert status(replication).doubt == why
    assert not any("copying" in text for text in replication.copied)
    assert [row["id"] for row in replication.live(T)] == [1, 2, 3]

"""Replicas that keep rows which their source has no longer: with a mark, or with each version."""

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from pgque_dagster.client.errors import InvalidArgument
from pgque_dagster.client.replicas.deletes import (
    DELETED_TICK,
    FROM_TICK,
    HISTORY,
    MARKS,
    TO_TICK,
    Deletes,
)
from pgque_dagster.spark.replicas.deletes import changed_rows, copied_rows, mark_columns
from pgque_dagster.spark.replicas.location import DeltaReplicas
from tests.support.replicas.replication import (
    IcebergReplication,
    PostgresReplication,
    Replication,
    Row,
)

# What is kept is decided in one place for both formats of the lake.
ONE_FORMAT = pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)


@pytest.fixture
def soft(replication: Replication) -> Replication:
    """Replicas that mark deleted rows."""
    replication.keep("soft")
    return replication


@pytest.fixture
def history(replication: Replication) -> Replication:
    """Replicas that keep each version."""
    replication.keep("history")
    return replication


def follow(replication: Replication, script: str) -> int:
    """Changes the source, catches up, and returns the tick at which the replica is."""
    replication.follow_and_check(script)
    return replication.last_tick()


def marks(replication: Replication) -> dict[int, int | None]:
    return {row["id"]: row[DELETED_TICK] for row in replication.replica("public.t")}


def at(replication: Replication, tick: int) -> list[Row]:
    return plain(replication.at("public.t", tick))


def plain(rows: Any) -> list[Row]:
    """Rows without marks, and without the columns that are null."""
    return sorted(
        ({k: v for k, v in row.items() if k not in (FROM_TICK, TO_TICK)} for row in rows), key=repr
    )


TABLE = "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')"


def test_a_deleted_row_stays_with_the_tick_and_comes_again(soft: Replication) -> None:
    soft.begin(TABLE)
    follow(soft, "insert into t values (3, 'c')")
    assert marks(soft) == {1: None, 2: None, 3: None}
    gone = follow(soft, "update t set v = 'z' where id = 2; delete from t where id = 2")
    again = follow(soft, "insert into t values (4, 'd'); delete from t where id = 4")
    assert marks(soft) == {1: None, 2: gone, 3: None, 4: again}
    values = {row["id"]: row["v"] for row in soft.replica("public.t")}
    assert values == {1: "a", 2: "z", 3: "c", 4: "d"}
    moved = follow(soft, "insert into t values (2, 'back'); update t set id = 5 where id = 1")
    assert marks(soft) == {1: moved, 2: None, 3: None, 4: again, 5: None}
    assert soft.verify().is_equal
    assert len(soft.copied) == 1


@pytest.mark.in_the_lake
@ONE_FORMAT
def test_a_copy_marks_the_rows_that_are_gone_and_forgets_none(soft: Replication) -> None:
    soft.begin(TABLE)
    first = follow(soft, "delete from t where id = 1")
    follow(soft, "truncate t; insert into t values (3, 'c')")
    found = marks(soft)
    assert (found[1], found[3]) == (first, None)
    assert found[2] is not None and found[2] > first
    follow(soft, "alter table t drop column v; alter table t add column w int default 7")
    assert {
        row["id"]: (row["v"], row["w"]) for row in soft.replica("public.t") if row["id"] < 3
    } == {1: ("a", None), 2: ("b", None)}
    assert marks(soft) == found
    follow(soft, "insert into t values (1, 1); delete from t where id = 3")
    assert marks(soft) == {1: None, 2: found[2], 3: soft.last_tick()}
    assert len(soft.copied) == 3


@ONE_FORMAT
def test_values_of_a_column_that_is_dropped_stay_until_the_row_changes(soft: Replication) -> None:
    soft.begin("create table t (id int primary key, v text, w int)")
    follow(soft, "insert into t values (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    follow(soft, "alter table t drop column v; update t set w = 4 where id = 2")
    values = {row["id"]: row["v"] for row in soft.replica("public.t")}
    assert values == {1: "a", 2: None, 3: "c"}
    follow(soft, "update t set w = 5 where id = 1; delete from t where id = 3")
    values = {row["id"]: row["v"] for row in soft.replica("public.t")}
    assert (values[1], values[2]) == (None, None)


@ONE_FORMAT
def test_the_table_at_any_tick_can_be_asked_for(history: Replication) -> None:
    history.begin(TABLE)
    seen = {}
    for script in (
        "select 1",
        "update t set v = 'x' where id = 1; update t set v = 'y' where id = 1",
        "update t set v = v; insert into t values (3, null)",
        "delete from t where id = 2; insert into t values (9, ''); delete from t where id = 9",
        "insert into t values (2, 'again'); update t set id = 4 where id = 3",
        "truncate t; insert into t values (1, 'y'), (2, 'other')",
        "delete from t",
        "insert into t values (1, 'y')",
    ):
        tick = follow(history, script)
        seen[tick] = plain(history.source("public.t"))
    for tick, rows in seen.items():
        assert at(history, tick) == rows, tick
    versions = [row["id"] for row in history.replica("public.t")]
    # An update that changes nothing makes no version, and what one batch makes and deletes none.
    assert sorted(versions) == [1, 1, 1, 2, 2, 2, 3, 4]
    assert history.verify().is_equal
    assert len(history.copied) == 2


def test_columns_that_go_and_come_take_no_version_away(history: Replication) -> None:
    history.begin(TABLE)
    before = follow(history, "delete from t where id = 2")
    follow(history, "alter table t add column w int default 7")
    after = follow(history, "alter table t drop column v; insert into t values (3, 8)")
    assert {row["v"] for row in at(history, before)} == {"a"}
    assert {(row["id"], row["w"]) for row in at(history, after)} == {(1, 7), (3, 8)}
    follow(history, "update t set w = 9 where id = 3; delete from t where id = 1")
    kept = {row["id"]: row["v"] for row in history.replica("public.t") if row[FROM_TICK] < before}
    assert kept == {1: "a", 2: "b"}
    assert len(history.copied) <= 3
    assert history.verify().is_equal


@pytest.mark.parametrize("deletes", ["soft", "history"])
def test_a_batch_that_is_applied_again_changes_nothing(
    replication: Replication, deletes: Deletes
) -> None:
    replication.keep(deletes)
    replication.begin(TABLE)
    replication.sql("update t set v = 'x' where id = 1; delete from t where id = 2")
    replication.sql("insert into t values (3, 'c')")
    replication.tick()
    replication.run(ack=False)
    once = replication.replica("public.t")
    replication.run(ack=False)
    replication.run()
    assert replication.replica("public.t") == once
    assert replication.verify().is_equal


@ONE_FORMAT
def test_copies_that_find_nothing_else_make_no_version(history: Replication) -> None:
    history.begin(TABLE)
    follow(history, "delete from t where id = 2")
    before = history.replica("public.t")
    for _ in range(2):
        history.repair()
        history.catch_up()
    assert history.replica("public.t") == before
    history.sql("set session_replication_role = replica; update t set v = 'unseen'")
    assert history.verify().differences == 1
    history.repair()
    history.catch_up()
    assert history.verify().is_equal
    assert len(history.replica("public.t")) == 3


KEY = "alter table t drop constraint t_pkey; alter table t add primary key (v)"


# They are compared in one place, with what each kind of replica records of itself.
@pytest.mark.in_the_lake
@pytest.mark.parametrize(
    ("replication", "deletes", "change"),
    [
        ("delta", "hard", "select 1"),
        ("delta", "soft", "select 1"),
        ("postgres", "history", KEY),
        ("delta", "history", KEY),
        pytest.param("iceberg", "history", KEY, marks=pytest.mark.slow),
    ],
    indirect=["replication"],
)
def test_another_way_or_key_is_refused_and_changes_nothing(
    history: Replication, deletes: Deletes, change: str
) -> None:
    history.begin(TABLE)
    follow(history, "delete from t where id = 2")
    before = history.replica("public.t")
    history.keep(deletes)
    with pytest.raises(InvalidArgument, match="was made with deletes: history, by id;"):
        history.follow(f"{change}; insert into t values (3, 'c')")
    assert history.replica("public.t") == before


@ONE_FORMAT
@pytest.mark.parametrize("deletes", ["soft", "history"])
def test_a_type_that_cannot_hold_what_is_kept_is_refused(
    replication: Replication, deletes: Deletes
) -> None:
    replication.keep(deletes)
    table = "create table t (id int primary key, v text);"
    replication.begin(f"{table} insert into t values (1, '5'), (2, '6')")
    follow(replication, "delete from t where id = 1")
    follow(replication, "alter table t alter v type int using v::int")
    assert {row["v"] for row in replication.replica("public.t")} == {5, 6}
    follow(replication, "alter table t alter v type text; update t set v = '07'")
    before = replication.replica("public.t")
    with pytest.raises(InvalidArgument, match="column v is now of type int"):
        replication.follow(
            "alter table t alter v type int using v::int; insert into t values (3, 3)"
        )
    assert replication.replica("public.t") == before


@ONE_FORMAT
@pytest.mark.parametrize("to", ["timestamp", "text"])
def test_kept_times_are_not_converted_by_a_guessed_time_zone(soft: Replication, to: str) -> None:
    convert = f"alter table t alter v type {to} using v at time zone 'America/New_York'"
    soft.begin("create table t (id int primary key, v timestamptz); insert into t values (1)")
    follow(soft, f"{convert}; delete from t")
    follow(soft, "alter table t alter v type timestamptz using null; insert into t values (2)")
    follow(soft, "update t set v = now()")
    follow(soft, "delete from t")
    before = soft.replica("public.t")
    with pytest.raises(InvalidArgument, match="column v is now of type"):
        soft.follow(f"{convert}; insert into t values (3)")

    assert soft.replica("public.t") == before


@pytest.mark.parametrize("deletes", [pytest.param("soft", marks=pytest.mark.slow), "history"])
def test_compaction_and_rows_of_others_take_nothing_away(
    iceberg: IcebergReplication, deletes: Deletes
) -> None:
    iceberg.keep(deletes)
    iceberg.begin(TABLE)
    follow(iceberg, "delete from t where id = 1")
    follow(iceberg, "insert into t values (3, 'n')")  # Another file.
    before = iceberg.replica("public.t")
    assert iceberg.sink("public.t").maintain(iceberg.spark, iceberg.url).by == 1
    assert iceberg.replica("public.t") == before
    iceberg.table("public.t").append(iceberg.arrow("public.t"))
    iceberg.follow("update t set v = v where id = 3")
    iceberg.repair()
    follow(iceberg, "select pgque.send('changes', 'other', 'wakes the consumer')")
    assert iceberg.replica("public.t") == before
    assert len([each for each in iceberg.copied if "copying" in each]) == 2


def test_what_is_no_way_to_delete_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="hard, soft, history"):
        DeltaReplicas("lake", deletes="gently")  # type: ignore[arg-type]
    assert list(MARKS) == ["hard", "soft", "history"]


@pytest.mark.parametrize("deletes", ["soft", "history"])
def test_a_first_copy_leaves_rows_where_they_are(spark: SparkSession, deletes: Deletes) -> None:
    """So that the statistics of files and row groups tell where keys are not."""
    columns = t.StructType([t.StructField("id", t.LongType()), *mark_columns(deletes)])
    rows = spark.range(99, 0, -1, 3)
    found = copied_rows(rows, None, columns, ["id"], deletes, 20)
    marks = (20, None) if deletes == HISTORY else (None,)
    assert found.schema.names == columns.names
    assert found.collect() == [(number, *marks) for number in range(99, 0, -1)]


def test_versions_of_ticks_that_come_anew_do_not_overlap(spark: SparkSession) -> None:
    source = [t.StructField("id", t.IntegerType()), t.StructField("v", t.StringType())]
    columns = t.StructType([*source, *mark_columns(HISTORY)])
    old = spark.createDataFrame([(7, "a", 20, 22), (8, "b", 25, None)], columns)
    changes = spark.createDataFrame(
        [(7, "n", False), (8, "m", False)], "id int, v string, __pgque_deleted boolean"
    )
    found = changed_rows(changes, old, columns, ["id"], HISTORY, 20).drop("__pgque_deleted")
    assert set(found.collect()) == {(7, "n", 22, None), (8, "b", 25, 26), (8, "m", 26, None)}
    rows = spark.createDataFrame([(7, "n"), (8, "b")], "id int, v string")
    found = copied_rows(rows, old, columns, ["id"], HISTORY, 20)
    assert set(found.collect()) == {(7, "a", 20, 22), (7, "n", 22, None), (8, "b", 25, None)}


def test_versions_in_postgres_of_ticks_that_come_anew_do_not_overlap(
    postgres: PostgresReplication,
) -> None:
    postgres.keep("history")
    postgres.begin(TABLE)
    later = postgres.last_tick() + 9
    postgres.there(f"insert into t values (7, 'old', {later - 2}, {later})")
    follow(postgres, "insert into t values (7, 'new')")
    found = postgres.there(f"select {FROM_TICK} from t where v = 'new'")
    assert found == [(later,)]

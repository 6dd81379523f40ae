"""Columns that are altered in each way, and back, with rows changed before, in and after that."""

import hashlib
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from pgque_dagster.client import InvalidArgument
from pgque_dagster.client.replicas.deletes import HARD, HISTORY, MARKS, SOFT, Deletes
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.apart import BAD, GOOD, join, mend, noted, prepare, spoil
from tests.support.replicas.replication import (
    DeltaReplication,
    IcebergReplication,
    LakeReplication,
    PostgresReplication,
    Replication,
    with_columns_of,
)

# By table: what is done to it, and what a target needs to follow without a copy.
CHANGES = {
    "nulls": ("alter table {0} add z int", {"nulls"}),
    "again": ("alter table {0} add z int; alter table {0} add y text", {"nulls"}),
    "fills": ("alter table {0} add z numeric(6, 2) default 7.5", {"values"}),
    "quoted": ("""alter table {0} add z text default e'it''s {{"x", \\\\ }} é\\n'""", {"values"}),
    "times": ("alter table {0} add z timestamptz default '2026-03-04 00:00+02'", {"values"}),
    "bytes": ("alter table {0} add z bytea default '\\x00ff'", {"values"}),
    "drops": ("alter table {0} drop b", {"drops"}),
    "drops_two": ("alter table {0} drop b; alter table {0} drop c", {"drops"}),
    "passes": ("alter table {0} add z int; update {0} set z = 1; alter table {0} drop z", set()),
    "undone": ("savepoint s; alter table {0} add z int; rollback to s", set()),
    "mixed": ("alter table {0} add z int; alter table {0} drop b", {"nulls", "drops"}),
    "anew": ("alter table {0} drop b; alter table {0} add b text", {"drops", "nulls", "anew"}),
    "named": ("alter table {0} rename b to z", {"renames"}),
    "swapped": (
        "alter table {0} rename b to z; alter table {0} rename w to b;"
        " alter table {0} rename z to w",
        {"renames"},
    ),
    "several": (
        "alter table {0} rename b to z; alter table {0} drop c; alter table {0} rename w to b;"
        " update {0} set b = 'several' where id = 7; alter table {0} add y int default 7;"
        " alter table {0} rename y to x; alter table {0} add q int; alter table {0} drop q",
        {"renames", "drops", "values"},
    ),
    "texts": ("alter table {0} alter v type text, alter t type timestamp(4)", {"types"}),
    "wider": ("alter table {0} alter n type numeric(12, 2), alter v type varchar(12)", {"wider"}),
    "digits": (
        "alter table {0} alter n type numeric(14, 2); alter table {0} rename n to z",
        {"wider"},
    ),
    "domain": ("alter table {0} alter v type few", set()),
    "zone": ("set local timezone = 'UTC'; alter table {0} alter t type timestamptz", {"a copy"}),
    "shorter": ("alter table {0} alter n type numeric(8, 1)", {"a copy"}),
    # The names in changes are the same before and after.
    "again_last": ("alter table {0} drop e; alter table {0} add e int", {"a copy"}),
    "volatile": ("alter table {0} add z float default random()", {"a copy"}),
}
TABLE = """
create table {0} (
    id int primary key, a text, b text default 'd', c int, w text default 'w',
    n numeric(6, 2) default 1.5, v varchar(9) default 'v',
    t timestamp(3) default '2026-01-02 03:04', e int default 3);
insert into {0} (id, a, b, w) select n, 'first', 'b' || n, 'w' || n from generate_series(1, 8) n;
"""
STEPS = (
    "update {0} set a = 'before' where id = 1; insert into {0} values (10, 'before')",
    "begin; insert into {0} values (11, 'in'); update {0} set a = 'in' where id = 2; {1};"
    " update {0} set a = 'in' where id in (3, 11); delete from {0} where id = 4; commit",
    "update {0} set a = 'after' where id in (5, 10); insert into {0} values (12, 'after')",
    "delete from {0} where id in (1, 12); update {0} set a = 'last' where id in (3, 6)",
)


def follows(replication: Replication) -> set[str]:
    # Otherwise, the column has kept values.
    anew = {"anew"} if replication.target.deletes == HARD else set()
    is_postgres = isinstance(replication, PostgresReplication)
    # There, a default would also fill rows that are gone.
    values = {"values"} if not is_postgres or anew else set()
    return {"nulls", "drops", "renames", "wider", "types", *anew, *values}


def changes(deletes: Deletes) -> dict[str, tuple[str, set[str]]]:
    """The changes after which a replica goes on: the new type holds the values that it keeps."""
    left = () if deletes == HARD else ("zone", "shorter")
    return {name: change for name, change in CHANGES.items() if name not in left}


@pytest.mark.parametrize("deletes", MARKS)
@pytest.mark.parametrize(
    "batches", ["one", *(pytest.param(x, marks=pytest.mark.slow) for x in ("several", "late"))]
)
def test_columns_are_followed_exactly_and_without_a_copy_where_that_is_possible(
    replication: Replication, deletes: Deletes, batches: str
) -> None:
    replication.keep(deletes)
    replication.sql("create domain few as varchar(9)")
    made = changes(deletes)
    for name in made:
        replication.sql(TABLE.format(name))
    replication.capture(*(f"public.{name}" for name in made))
    replication.catch_up()
    replication.copied.clear()
    seen = [(replication.last_tick(), {name: replication.source(name) for name in made})]
    for number, step in enumerate(STEPS):
        if batches == "late" and number == 1:
            replication.tick()
        for name, (change, _) in made.items():
            replication.sql(step.format(name, change.format(name)))
        if batches == "late" and number == 1:
            replication.run()
        elif batches == "several":
            replication.follow_and_check()
            seen.append(
                (replication.last_tick(), {name: replication.source(name) for name in made})
            )
    replication.follow_and_check()
    copied = {
        text.split()[1].removeprefix("public.").rstrip(":")
        for text in replication.copied
        if text.startswith("copying")
    }
    needs = {name for name, (_, needs) in made.items() if not needs <= follows(replication)}
    assert copied == needs, replication.copied
    for name in ("again", "quoted", "drops", "several"):
        assert replication.verify(f"public.{name}").is_equal
    for tick, tables in seen if deletes == HISTORY else ():
        for name, rows in tables.items():
            then = replication.at(f"public.{name}", tick)
            assert with_columns_of(then, [{"id": 0, "a": 0}]) == with_columns_of(
                rows, [{"id": 0, "a": 0}]
            )


def test_a_table_that_stands_apart_follows_when_it_joins_the_others(
    replication: Replication,
) -> None:
    prepare(replication)
    replication.sql("alter table b add x text")
    spoil(replication, 3)
    replication.catch_up()
    assert noted(replication)
    replication.copied.clear()
    replication.follow("update b set x = 'x' where id = 1; alter table b add z int default 7")
    replication.sql(f"alter table b rename x to y; insert into b values (8, '{GOOD}', 'y', 8)")
    replication.sql(f"insert into b values (9, '{BAD}'); delete from b where id = 9")
    mend(replication)
    join(replication)
    copies = [text for text in replication.copied if text.startswith("copying")]
    # Iceberg's replica is copied.
    assert not copies or isinstance(replication, IcebergReplication)


def test_a_name_that_is_masked_or_left_out_may_pass_to_another_column(
    replication: Replication,
) -> None:
    spec = TableSpec("public.t", exclude=["c"], mask={"a": "sha256"})
    replication.sql("create table t (id int primary key, a text, b text, c text, d text)")
    replication.begin(
        "insert into t values (1, 'a', 'b', 'c', 'd'), (2, 'a2', 'b2', 'c2', 'd2')", spec
    )
    for one, other in (("a", "b"), ("c", "d")):
        replication.follow(
            f"update t set a = 'x' where id = 1; alter table t rename {one} to x;"
            f"alter table t rename {other} to {one}; alter table t rename x to {other};"
            "update t set b = 'y' where id = 2"
        )
        rows = replication.source("public.t")
        for row in rows:
            row.pop("c")
            row["a"] = hashlib.sha256(row["a"].encode()).hexdigest()
        assert replication.replica("public.t") == sorted(rows, key=repr)


def test_a_copy_says_that_changes_do_not_tell_their_columns(replication: Replication) -> None:
    replication.begin("create table t (id int primary key, a int)")
    replication.sql("insert into t values (1, 1); alter table t drop a; alter table t add a int")
    replication.follow_and_check("insert into t values (2, 2)")
    is_known = {"drops", "nulls"} <= follows(replication)
    assert ("changes do not tell which columns" in replication.copied[-1]) == is_known


@pytest.mark.slow
@pytest.mark.parametrize("first", ["null", "7"])
def test_rows_before_a_column_in_one_transaction_come_after_its_subtransaction(
    replication: Replication, first: str
) -> None:
    replication.begin("create table t (id int primary key, a text)")
    with psycopg.connect(replication.url) as db:
        db.execute("insert into t values (3, 'x')")
        with db.transaction():
            db.execute(f"alter table t add z int default {first}".encode())
        replication.sql("create table later ()")
        replication.tick()
    replication.run()
    replication.follow_and_check()


@pytest.mark.parametrize("replication", ["delta", "iceberg", "postgres"], indirect=True)
def test_a_partitioned_table_gets_a_column(replication: Replication) -> None:
    replication.begin(
        "create table t (id int primary key, a text) partition by list (id);"
        "create table t1 partition of t for values in (1);"
        "create table t2 (a text, id int not null); alter table t attach partition t2 default;"
        "insert into t values (1, 'a'), (2, 'b'), (3, 'c')"
    )
    replication.copied.clear()
    replication.sql("update t set a = 'x' where id = 2; alter table t add c int")
    replication.follow_and_check("insert into t values (4, 'd')")
    replication.follow_and_check("alter table t add d int default 7; update t1 set a = 'y'")
    assert replication.verify().is_equal
    fills = "values" in follows(replication)
    assert sum(text.startswith("copying") for text in replication.copied) == (not fills)


T = "public.t"
SWAP = "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b"


def copied_table(replication: Replication, table: str | TableSpec = T) -> None:
    replication.sql("create table t (id int primary key, a varchar(4), b text)")
    replication.begin(
        "insert into t select n, 'a' || n, 'b' || n from generate_series(1, 5) n", table
    )
    replication.copied.clear()


@pytest.mark.slow
def test_a_replica_in_the_lake_follows_columns_that_are_renamed_there_and_back(
    lake: LakeReplication,
) -> None:
    copied_table(lake)
    # Iceberg uses the first schema again.
    for old, new in (("b", "c"), ("c", "b"), ("b", "c")):
        lake.follow_and_check(
            f"alter table t rename {old} to {new}; update t set {new} = '{new}' where id = 3"
        )
        lake.sink(T).maintain(lake.spark, lake.url)
        assert lake.verify().is_equal
    assert not any("copying" in message for message in lake.copied)


def set_back(iceberg: IcebergReplication, snapshot: int) -> None:
    """Does what a rollback of Spark does, of rows and not of columns."""
    with iceberg.table(T).transaction() as change:
        update = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot)
        change._apply((update,), ())


@pytest.mark.slow
def test_an_iceberg_replica_that_is_set_back_to_other_columns_is_copied(
    iceberg: IcebergReplication,
) -> None:
    copied_table(iceberg)
    found = iceberg.table(T).current_snapshot()
    iceberg.follow(SWAP)
    # By the names of columns, the old files have the new rows.
    iceberg.follow("update t set a = b, b = a")
    set_back(iceberg, found.snapshot_id)
    with pytest.raises(InvalidArgument, match="columns that were renamed"):
        iceberg.sink(T).read(iceberg.spark, iceberg.url, found.snapshot_id)
    assert iceberg.verify().problem
    iceberg.follow_and_check("insert into t values (9, 'x', 'y')")
    assert iceberg.verify().is_equal
    # From then on, it is like any other.
    iceberg.follow_and_check(f"{SWAP}; update t set a = 'new' where id = 2")


@pytest.mark.slow
def test_an_excluded_column_gets_another_type(replication: Replication) -> None:
    copied_table(replication, TableSpec(T, exclude=["a"]))
    replication.follow("alter table t alter a type text; update t set b = 'late' where id = 5")
    rows = [{"id": row["id"], "b": row["b"]} for row in replication.source("t")]
    assert sorted(map(str, replication.replica(T))) == sorted(
        str(dict(sorted(row.items()))) for row in rows
    )
    assert not any("copying" in message for message in replication.copied)


@pytest.mark.slow
@pytest.mark.parametrize("deletes", [SOFT, HISTORY])
def test_files_that_are_replaced_keep_the_values_of_dropped_columns(
    lake: LakeReplication, deletes: Deletes
) -> None:
    is_delta = isinstance(lake, DeltaReplication)
    by_position: Any = {"deletion_vectors" if is_delta else "merge_on_read": False}
    lake.target = replace(lake.target, deletes=deletes, **by_position)
    copied_table(lake)
    lake.follow("alter table t drop b; delete from t where id = 1")
    lake.follow("update t set a = 'new' where id = 2")
    found = {(row["id"], row["b"]) for row in lake.replica(T)}
    assert {(1, "b1"), (3, "b3"), (4, "b4"), (5, "b5"), (2, None)} <= found
    assert ((2, "b2") in found) == (deletes == HISTORY)


def comments(replication: LakeReplication) -> dict[str, str]:
    """The comments that readers find, by column."""
    if isinstance(replication, IcebergReplication):
        found = {x.name: x.doc for x in replication.table("public.t").schema().fields}
    else:
        assert isinstance(replication, DeltaReplication)
        fields = replication.table("public.t").schema().fields
        found = {x.name: x.metadata.get("comment") for x in fields}
    return {name: text for name, text in found.items() if text}


def test_a_changed_comment_is_carried_over_without_a_copy(lake: LakeReplication) -> None:
    lake.begin(
        "create table t (id int primary key, v text, w text);"
        "comment on column t.id is 'a number'; comment on column t.w is 'goes';"
        "insert into t values (1, 'a', 'b')"
    )
    assert comments(lake) == {"id": "a number", "w": "goes"}
    lake.copied.clear()

    lake.sql("comment on column t.v is 'a ''text'''; comment on column t.w is null")
    lake.follow("update t set v = 'c'")

    assert comments(lake) == {"id": "a number", "v": "a 'text'"}
    assert not any("copying" in text for text in lake.copied)
    lake.check()

    lake.sql("alter table t rename v to x; comment on column t.x is 'renamed'")
    lake.follow("update t set x = 'd'")

    assert comments(lake) == {"id": "a number", "x": "renamed"}
    assert not any("copying" in text for text in lake.copied)
    lake.check()

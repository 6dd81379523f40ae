"""Columns that are altered and altered back, also where the replica was set back in between."""

from dataclasses import replace

import pytest
from pyiceberg.table.update import SetSnapshotRefUpdate

from pgque_dagster.client import InvalidArgument
from pgque_dagster.client.replicas.deletes import HISTORY, SOFT, Deletes
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import (
    IcebergReplication,
    LakeReplication,
    PostgresReplication,
    Replication,
)

T = "public.t"
SWAP = "alter table t rename a to x; alter table t rename b to a; alter table t rename x to b"


def prepare(replication: Replication, table: str | TableSpec = T) -> None:
    replication.sql("create table t (id int primary key, a varchar(4), b text)")
    replication.sql("insert into t select n, 'a' || n, 'b' || n from generate_series(1, 5) n")
    replication.capture(table)
    replication.catch_up()
    replication.copied.clear()


@pytest.mark.slow
def test_a_replica_in_the_lake_follows_columns_that_are_renamed_there_and_back(
    lake: LakeReplication,
) -> None:
    prepare(lake)
    # Iceberg uses the first schema again.
    for old, new in (("b", "c"), ("c", "b"), ("b", "c")):
        lake.sql(f"alter table t rename {old} to {new}; update t set {new} = '{new}' where id = 3")
        lake.catch_up()
        lake.check()
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
    prepare(iceberg)
    found = iceberg.table(T).current_snapshot()
    assert found is not None
    iceberg.sql(SWAP)
    iceberg.catch_up()
    # By the names of columns, the old files have the new rows.
    iceberg.sql("update t set a = b, b = a")
    iceberg.catch_up()
    set_back(iceberg, found.snapshot_id)
    with pytest.raises(InvalidArgument, match="columns that were renamed"):
        iceberg.sink(T).read(iceberg.spark, iceberg.url, found.snapshot_id)
    assert iceberg.verify().problem
    iceberg.sql("insert into t values (9, 'x', 'y')")
    iceberg.catch_up()
    iceberg.check()
    assert iceberg.verify().is_equal
    # From then on, it is like any other.
    iceberg.sql(f"{SWAP}; update t set a = 'new' where id = 2")
    iceberg.catch_up()
    iceberg.check()


@pytest.mark.slow
def test_an_excluded_column_gets_another_type(replication: Replication) -> None:
    prepare(replication, TableSpec(T, exclude=["a"]))
    replication.sql("alter table t alter a type text; update t set b = 'late' where id = 5")
    replication.catch_up()
    rows = [{"id": row["id"], "b": row["b"]} for row in replication.source("t")]
    assert sorted(map(str, replication.replica(T))) == sorted(
        str(dict(sorted(row.items()))) for row in rows
    )
    assert not any("copying" in message for message in replication.copied)


@pytest.mark.slow
def test_kept_values_that_are_no_values_of_the_new_type_are_named(
    postgres: PostgresReplication,
) -> None:
    postgres.keep(SOFT)
    prepare(postgres)
    postgres.sql("alter table t drop b, add b int")
    with pytest.raises(InvalidArgument, match="b is now of type integer, which cannot"):
        postgres.catch_up()


@pytest.mark.slow
@pytest.mark.parametrize("deletes", [SOFT, HISTORY])
def test_files_that_are_replaced_keep_the_values_of_dropped_columns(
    iceberg: IcebergReplication, deletes: Deletes
) -> None:
    iceberg.target = replace(iceberg.target, deletes=deletes, merge_on_read=False)
    prepare(iceberg)
    iceberg.sql("alter table t drop b; delete from t where id = 1")
    iceberg.catch_up()
    iceberg.sql("update t set a = 'new' where id = 2")
    iceberg.catch_up()
    found = {(row["id"], row["b"]) for row in iceberg.replica(T)}
    assert {(3, "b3"), (4, "b4"), (5, "b5"), (2, None)} <= found

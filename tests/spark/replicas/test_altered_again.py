"""Columns that are altered and altered back, also where the replica was set back in between."""

from dataclasses import replace

import pytest

from pgque_dagster.client import InvalidArgument
from pgque_dagster.client.replicas.deletes import HISTORY, SOFT, Deletes
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import (
    IcebergReplication,
    PostgresReplication,
    Replication,
)

T = "public.t"


def prepare(replication: Replication, table: str | TableSpec = T) -> None:
    replication.sql("create table t (id int primary key, a varchar(4), b text)")
    replication.sql("insert into t select n, 'a' || n, 'b' || n from generate_series(1, 5) n")
    replication.capture(table)
    replication.catch_up()
    replication.copied.clear()


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

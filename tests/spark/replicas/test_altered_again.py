"""Columns that are altered and altered back, also where the replica was set back in between."""

import pytest

from pgque_dagster.client import InvalidArgument
from pgque_dagster.client.replicas.deletes import SOFT
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import (
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

"""Replicas of tables that are altered and are then as before, or look so."""

import pytest

from tests.support.replicas.replication import Replication

# Whether a table is copied again is decided in one place for both formats of the lake.
pytestmark = pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)

SWAP = "alter table t rename a to c; alter table t rename b to a; alter table t rename c to b"


@pytest.mark.parametrize(
    "steps",
    [
        ["alter table t rename a to c; update t set c = 'z'; alter table t rename c to a"],
        [f"{SWAP}; insert into t values (2, 'x', 'y'); {SWAP}"],
        # In two batches.
        [f"{SWAP}; insert into t values (2, 'x', 'y')", SWAP],
        ["alter table t drop a; alter table t add a text; update t set b = 'x'"],
        ["alter table t add c int; update t set c = 1, a = 'z'; alter table t drop c"],
    ],
)
def test_changes_under_other_names_of_columns_are_not_misread(
    replication: Replication, steps: list[str]
) -> None:
    replication.sql("create table t (id int primary key, a text, b text)")
    replication.sql("insert into t values (1, 'a', 'b')")
    replication.capture("public.t")
    replication.catch_up()
    for step in steps:
        replication.sql(step)
        replication.tick()
    replication.catch_up()
    replication.check()
    assert replication.verify().is_equal


@pytest.mark.parametrize(
    "change",
    [
        "alter type pair add attribute c int",
        "alter type pair rename attribute a to d; alter type mood rename value 'sad' to 'low'",
        "alter type color rename value 'red' to 'blue'",
    ],
)
def test_a_type_that_prints_values_otherwise_has_the_table_copied_again(
    replication: Replication, change: str
) -> None:
    replication.sql(
        "create type mood as enum ('sad', 'fine'); create type color as enum ('red', 'green');"
        "create type pair as (a int, b mood); create domain tint as color;"
        "create table t (id int primary key, pairs pair[], tints tint[]);"
        """insert into t values (1, array['(1,sad)'::pair], '{red}')"""
    )
    replication.capture("public.t")
    replication.catch_up()
    replication.sql(f"{change}; insert into t values (2)")
    replication.catch_up()
    replication.check()
    assert replication.verify().is_equal

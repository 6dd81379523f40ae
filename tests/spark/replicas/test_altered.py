"""Replicas of tables that are altered and are then as before, or look so."""

import pytest

from pgque_dagster.client.replicas.outcome import Replicated
from tests.support.replicas.replication import Replication, for_table

# Whether a table is copied again is decided in one place for both formats of the lake.
pytestmark = pytest.mark.parametrize("replication", ["delta", "postgres"], indirect=True)

SWAP = "alter table t rename a to c; alter table t rename b to a; alter table t rename c to b"
# Of a table t each, in one batch or in two.
CHANGES = (
    ["alter table t rename a to c; update t set c = 'z'; alter table t rename c to a"],
    [f"{SWAP}; insert into t values (2, 'x', 'y'); {SWAP}"],
    [f"{SWAP}; insert into t values (2, 'x', 'y')", SWAP],
    ["alter table t drop a; alter table t add a text; update t set b = 'x'"],
    ["alter table t add c int; update t set c = 1, a = 'z'; alter table t drop c"],
)


def test_changes_under_other_names_of_columns_are_not_misread(replication: Replication) -> None:
    names = [f"public.t{number}" for number in range(len(CHANGES))]
    table = "create table {0} (id int primary key, a text, b text); insert into {0} values (1, 'a')"
    replication.begin("; ".join(map(table.format, names)), *names)
    for number in range(2):
        for name, steps in zip(names, CHANGES, strict=True):
            for step in steps[number : number + 1]:
                replication.sql(for_table(name, step))
        replication.tick()
    replication.follow_and_check()
    assert all(replication.verify(name).is_equal for name in names)


def test_tables_may_differ_after_types_within_their_types_print_values_otherwise(
    replication: Replication,
) -> None:
    values = {"pairs": "(1,2)", "tags": "(1,sad)", "tints": "red"}
    names = [f"public.{name}" for name in values]
    replication.sql(
        "create type mood as enum ('sad', 'fine'); create type color as enum ('red', 'green');"
        "create type pair as (a int, b int); create type tag as (a int, b mood);"
        "create domain tint as color"
    )
    tables = (
        f"create table {name} (id int primary key, v {name[:-1]}[]);"
        f"insert into {name} values (1, array['{value}'::{name[:-1]}])"
        for name, value in values.items()
    )
    replication.begin("; ".join(tables), *names)
    replication.sql(
        "alter type pair add attribute c int; alter type tag rename attribute a to d;"
        "alter type mood rename value 'sad' to 'low'; alter type color rename value 'red' to 'blue'"
    )
    replication.follow("; ".join(f"insert into {name} values (2)" for name in names))
    for name in names:
        assert any(f"{name} may differ from its replica" in text for text in replication.copied)
        assert replication.verify(name).differences == 1


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_what_does_not_matter_to_a_replica_has_nothing_copied(
    replication: Replication, is_one_batch: bool
) -> None:
    change = (
        "alter table t alter a set not null, alter a drop default, alter b set statistics 10,"
        " alter b set storage plain;"
        "grant select (a) on t to pg_monitor; revoke all on t from public"
    )
    replication.sql("create table t (id int primary key, a text default 'd', b text, n int)")
    replication.begin("insert into t values (1, 'a', 'b'), (2, 'a', 'b')")
    for script in (
        "update t set a = 'before' where id = 1",
        f"begin; insert into t values (3, 'in', 'b'); {change}; update t set b = 'in'; commit",
        "delete from t where id = 2; insert into t values (4, 'after', 'b')",
        "update t set n = 1",
    ):
        replication.sql(script)
        if not is_one_batch:
            replication.follow_and_check()
    replication.follow_and_check()
    assert replication.verify().is_equal
    assert len(replication.copied) == 1
    with replication.connect() as db:
        now = db.execute("select pgque.table_facts('t', 'changes') -> 'writers'").fetchone()
        then = "select shape::jsonb -> 'writers' from pgque.replica_table"
        assert db.execute(then.encode()).fetchone() == now, "later batches need not look"


def test_a_column_that_is_renamed_between_a_batch_and_its_run_is_not_misread_later(
    replication: Replication,
) -> None:
    replication.begin("create table t (id int primary key, a text, b text)")
    replication.sql("insert into t values (1, 'a', 'b')")
    replication.tick()
    # What is written under the other names comes in the batch after the next.
    replication.sql(f"{SWAP}; insert into t values (2, 'x', 'y'); {SWAP}")
    replication.run()
    replication.follow_and_check()
    assert replication.verify().is_equal


def test_partitions_with_columns_in_another_order_are_not_misread(replication: Replication) -> None:
    replication.begin(
        "create table t (id int primary key, a text, b text) partition by list (id);"
        "create table t1 (id int not null, b text, a text);"
        "alter table t attach partition t1 default; insert into t values (1, 'a', 'b')"
    )
    replication.follow_and_check(f"{SWAP}; update t1 set a = 'new'; {SWAP}")


def test_a_hash_that_an_earlier_version_stored_stands_for_the_same_shape(
    replication: Replication,
) -> None:
    replication.begin("create table t (id int primary key, a text)")
    for change, copies in (("select 1", 1), ("alter table t alter a set not null", 2)):
        replication.sql("update pgque.replica_table set shape = pgque.table_shape('t', 'changes')")
        replication.sql(change)
        for _ in range(2):
            replication.follow_and_check("insert into t select count(*), 'x' from t")
        assert len(replication.copied) == copies


def test_a_copy_says_what_was_altered(replication: Replication) -> None:
    replication.begin("create table t (id int primary key, a int)")
    replication.sql("alter table t add c int default 7; alter table t rename a to b")
    replication.sql("alter table t drop constraint t_pkey, add primary key (id)")
    (done,) = replication.follow("insert into t values (1)")
    assert isinstance(done, Replicated)
    assert done.reason == (
        "it was altered: it has another key, or a new one; column 2 b was a; "
        "column 3 c integer was added, old rows have 7"
    )
    assert done.reason in replication.copied[-1]

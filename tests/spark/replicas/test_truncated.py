"""A TRUNCATE is applied at its place among the changes, without a look at the table."""

import pytest

from pgque_dagster.client.replicas.deletes import HARD, HISTORY, MARKS, Deletes
from pgque_dagster.client.replicas.outcome import Replicated
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import Replication, with_columns_of

TABLE = (
    "create table t (id int primary key, v text);"
    "insert into t select n, 'first' from generate_series(1, 5) n"
)
SCRIPTS = (
    "update t set v = 'before' where id = 1; insert into t values (6, 'before')",
    "truncate t",
    "insert into t values (1, 'first'), (2, 'after'), (7, 'after'); delete from t where id = 7",
    "begin; insert into t values (8, 'in'); truncate t; insert into t values (2, 'after'); commit",
    "update t set v = 'last'; insert into t values (3, 'first')",
)


def is_equal(replication: Replication) -> bool:
    rows = replication.source("public.t")
    return (
        with_columns_of(replication.live("public.t"), rows) == rows
        if rows
        else (not replication.live("public.t"))
    )


@pytest.mark.parametrize("deletes", MARKS)
def test_nothing_before_the_last_truncate_counts(
    replication: Replication, deletes: Deletes
) -> None:
    replication.keep(deletes)
    replication.sql(TABLE)
    replication.capture("public.t")
    replication.catch_up()
    seen = [(replication.last_tick(), replication.source("public.t"))]
    # In one batch, then in several.
    for script in ("; ".join(SCRIPTS).replace("begin; ", "").replace("; commit", ""), *SCRIPTS):
        replication.sql(script)
        replication.catch_up()
        assert is_equal(replication), script
        seen.append((replication.last_tick(), replication.source("public.t")))
    assert replication.verify().is_equal
    copies = [text for text in replication.copied if text.startswith("copying")]
    assert len(copies) == 1, copies
    if deletes != HARD:
        # What one batch inserts and deletes makes no version.
        kept = range(1, 7 if deletes == HISTORY else 8)
        assert {row["id"] for row in replication.replica("public.t")} == {*kept}
    for tick, rows in seen if deletes == HISTORY else ():
        assert with_columns_of(replication.at("public.t", tick), rows) == rows


def test_a_truncate_between_a_batch_and_its_run_waits_for_its_own_batch(
    replication: Replication,
) -> None:
    replication.sql(TABLE)
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("update t set v = 'x'")
    replication.tick()
    replication.sql("truncate t; insert into t values (9, 'y')")
    replication.run()
    assert {row["v"] for row in replication.replica("public.t")} == {"x"}
    done = replication.catch_up()
    replication.check()
    assert replication.verify().is_equal
    assert not any(isinstance(each, Replicated) and each.reason for each in done)


def test_an_attempt_without_an_ack_is_repeated(replication: Replication) -> None:
    replication.sql(TABLE)
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("truncate t; insert into t values (9, 'y')")
    replication.tick()
    for is_acked in (False, True):
        replication.run(ack=is_acked)
        replication.check()
    replication.sql("insert into t values (10, 'z')")
    replication.catch_up()
    replication.check()


def test_a_table_without_a_key_loses_the_rows_from_before(replication: Replication) -> None:
    log = TableSpec("public.log", mode="append")
    replication.sql("create table log (v int); insert into log values (1), (1)")
    replication.capture(log)
    replication.catch_up()
    replication.sql("insert into log values (2); update log set v = 3; truncate log")
    replication.sql("insert into log values (4), (4)")
    replication.catch_up()
    replication.check()
    assert replication.verify(log).is_equal


def test_a_rewrite_after_a_truncate_is_not_taken_for_it(replication: Replication) -> None:
    replication.sql(TABLE)
    replication.capture("public.t")
    replication.catch_up()
    replication.sql("truncate t; insert into t values (9, 'y')")
    replication.sql("alter table t alter v type text using v || '!'")
    replication.catch_up()
    replication.check()


@pytest.mark.parametrize("name", ["a", "z"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_rows_that_a_trigger_inserts_at_a_truncate_are_there(
    replication: Replication, when: str, name: str
) -> None:
    replication.sql(TABLE)
    replication.capture("public.t")
    replication.catch_up()
    replication.sql(
        "create function first() returns trigger language plpgsql as $$"
        " begin insert into t values (9, 'first'); return null; end $$;"
        f"create trigger {name} {when} truncate on t execute function first(); truncate t"
    )
    replication.catch_up()
    replication.check()

"""A TRUNCATE is applied at its place among the changes, without a look at the table."""

import pytest

from pgque_dagster.client.replicas.deletes import HARD, HISTORY, MARKS, Deletes
from pgque_dagster.client.replicas.outcome import Replicated
from pgque_dagster.client.replicas.spec import TableSpec
from tests.support.replicas.replication import Replication, for_table, with_columns_of

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


@pytest.mark.parametrize("deletes", MARKS)
def test_nothing_before_the_last_truncate_counts(
    replication: Replication, deletes: Deletes
) -> None:
    replication.keep(deletes)
    replication.begin(TABLE)
    seen = [(replication.last_tick(), replication.source("public.t"))]
    # In one batch, then in several.
    for script in ("; ".join(SCRIPTS).replace("begin; ", "").replace("; commit", ""), *SCRIPTS):
        replication.follow_and_check(script)
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
    replication.begin(TABLE)
    replication.sql("update t set v = 'x'")
    replication.tick()
    replication.sql("truncate t; insert into t values (9, 'y')")
    replication.run()
    assert {row["v"] for row in replication.replica("public.t")} == {"x"}
    done = replication.follow_and_check()
    assert replication.verify().is_equal
    assert not any(isinstance(each, Replicated) and each.reason for each in done)


def test_an_attempt_without_an_ack_is_repeated(replication: Replication) -> None:
    replication.begin(TABLE)
    replication.sql("truncate t; insert into t values (9, 'y')")
    replication.tick()
    for is_acked in (False, True):
        replication.run(ack=is_acked)
        replication.check()
    replication.follow_and_check("insert into t values (10, 'z')")


def test_a_table_without_a_key_loses_the_rows_from_before(replication: Replication) -> None:
    log = TableSpec("public.log", mode="append")
    replication.begin("create table log (v int); insert into log values (1), (1)", log)
    replication.sql("insert into log values (2); update log set v = 3; truncate log")
    replication.follow_and_check("insert into log values (4), (4)")
    assert replication.verify(log).is_equal


def test_a_rewrite_after_a_truncate_is_not_taken_for_it(replication: Replication) -> None:
    replication.begin(TABLE)
    replication.sql("truncate t; insert into t values (9, 'y')")
    replication.follow_and_check("alter table t alter v type text using v || '!'")


def test_rows_that_a_trigger_inserts_at_a_truncate_are_there(replication: Replication) -> None:
    names = [f"public.{when}_{name}" for when in ("before", "after") for name in "az"]
    replication.begin("; ".join(for_table(name, TABLE) for name in names), *names)
    for name in names:
        when, trigger = name.removeprefix("public.").split("_")
        replication.sql(
            f"create function first_{when}_{trigger}() returns trigger language plpgsql as $$"
            f" begin insert into {name} values (9, 'first'); return null; end $$;"
            f"create trigger {trigger} {when} truncate on {name}"
            f" execute function first_{when}_{trigger}(); truncate {name}"
        )
    replication.follow_and_check()

"""The shape of a replicated table: the facts of its catalog, and when another one counts."""

import psycopg

from tests.support.queues.sql import Connection

FACTS = "pgque.table_facts('t', 'q')"
STORED = f"select shape::jsonb = {FACTS} from pgque.replica_table"
TABLE = "create table t (id int primary key, a text)"


def note(q: Connection, copied: str) -> None:
    query = f"select pgque.set_replicated('q', 'c', 'public.t', %s::pg_snapshot, {FACTS}::text)"
    q.execute(query.encode(), (copied,))


def batch(q: Connection) -> int:
    q.execute("select pgque.send('q', 'e', '1'); select pgque.force_next_tick('q')")
    q.execute("select pgque.ticker('q')")
    return int(q.value("select pgque.next_batch('q', 'c')"))


def test_another_shape_counts_once_a_batch_has_all_that_was_written_before(q: Connection) -> None:
    q.execute(TABLE.encode())
    copied = str(q.value("select pg_current_snapshot()"))
    note(q, copied)
    first = batch(q)
    q.execute("alter table t alter a set not null")
    note(q, copied)
    assert not q.value(STORED)
    q.execute("select pgque.finish_batch(%s)", (first,))
    batch(q)
    note(q, copied)
    assert q.value(STORED)


def test_a_subtransaction_counts_with_its_transaction(q: Connection, database_url: str) -> None:
    q.execute(TABLE.encode())
    copied = str(q.value("select pg_current_snapshot()"))
    note(q, copied)
    with psycopg.connect(database_url) as other:
        other.execute("select pg_current_xact_id()")
        with other.transaction():
            other.execute("alter table t alter a set not null")
        # So that snapshots look beyond the subtransaction.
        q.execute("create table later ()")
        first = batch(q)
    note(q, copied)
    assert not q.value(STORED)
    q.execute("select pgque.finish_batch(%s)", (first,))
    batch(q)
    note(q, copied)
    assert q.value(STORED)


def test_before_another_shape_counts_the_columns_of_the_replica_are_known(q: Connection) -> None:
    q.execute(TABLE.encode())
    copied = str(q.value("select pg_current_snapshot()"))
    note(q, copied)
    batch(q)
    q.execute("alter table t add b int")
    note(q, copied)
    stored = "(select shape::jsonb from pgque.replica_table)"
    assert q.value(f"select {stored} - 'has' <> {FACTS}")
    assert q.value(f"select {stored} -> 'has' = {FACTS} -> 'columns'")


def test_the_shape_of_another_copy_counts_at_once(q: Connection) -> None:
    q.execute(TABLE.encode())
    note(q, str(q.value("select pg_current_snapshot()")))
    batch(q)
    q.execute("alter table t add b int")
    note(q, str(q.value("select pg_current_snapshot()")))
    assert q.value(STORED)


def test_facts_tell_what_rows_have_in_a_column_that_they_lack(q: Connection) -> None:
    q.execute("create table t (id int primary key, a text) partition by list (id)")
    q.execute("create table t1 partition of t for values in (1)")
    q.execute("alter table t add b timestamptz default '2026-01-02 03:04+02', add c text")
    q.execute(
        """alter table t add d text default e'"x", \\'{}\\' \\\\', add e int[] default '{1,2}'"""
    )
    q.execute("alter table t add f box default '(1,1),(0,0)'")
    q.execute("create domain few as int; alter table t add g few default 7")
    q.execute("alter table t add h numeric default 7.50, add i boolean default true")
    q.execute("set timezone = 'Asia/Tokyo'; set datestyle = 'german'")
    assert q.value(f"select {FACTS} -> 'missing'") == {
        "3": ['"2026-01-02T01:04:00+00:00"'],
        "5": [r'''"\"x\", '{}' \\"'''],
        "6": ['"{1,2}"'],
        "7": ['"(1,1),(0,0)"'],
        "8": ["7"],
        "9": ['"7.50"'],
        "10": ["true"],
    }


def test_writers_are_whole_transaction_ids(q: Connection) -> None:
    q.execute("begin")
    q.execute(TABLE.encode())
    mine = int(q.value("select pg_current_xact_id()::text::bigint"))
    assert set(q.value(f"select {FACTS} -> 'writers'").values()) == {mine}
    q.execute("commit")


def test_a_table_that_is_not_there_has_no_facts(q: Connection) -> None:
    assert q.value("select pgque.table_facts(null, 'q')") is None

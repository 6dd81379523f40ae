"""The same calls give the same results here and in PgQ 3.5, except where a row says otherwise.

The rows run one after another in one database, on the add-on and, where Debian's extension is
installed, on C PgQ.
"""

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.queues.sql import Connection, connect
from tests.support.servers.databases import empty_database
from tests.support.servers.postgres import Postgres


class Error(str):
    """The call fails with these words."""


# The call, its result as text, and ours if that differs.
CALLS: list[tuple[str, ...]] = [
    ("pgq.version()", "3.5"),
    ("pgq.create_queue('q')", "1"),
    ("pgq.create_queue('q')", "0"),
    ("pgq.create_queue(null)", Error("null")),
    *(
        (f"pgq.set_queue_config('q', '{name}', '{value}')", "1", Error("not a valid value"))
        for name, value in (
            *(("ticker_max_count", "0"), ("ticker_max_count", "-1"), ("rotation_period", "0")),
            *(("ticker_max_lag", "-1 s"), ("ticker_idle_period", "-1 s")),
        )
    ),
    ("pgq.set_queue_config('q', 'ticker_max_lag', '0')", "1"),
    ("pgq.set_queue_config('q', 'rotation_period', '2 hours')", "1"),
    ("pgq.set_queue_config('q', 'ticker_max_count', '2')", "1"),
    ("pgq.seq_getval('pg_temp.foreign_ids')", "1", Error("not the event sequence of a queue")),
    ("pgq.seq_setval('pg_temp.foreign_ids', 50)", "50", Error("not the event sequence of a queue")),
    ("pgq.set_queue_config('q', 'ticker_idle_period', '0')", "1"),
    ("pgq.set_queue_config('q', 'nosuch', '1')", Error("nosuch")),
    ("pgq.set_queue_config('q', 'ticker_max_count', 'x')", Error("integer")),
    (
        "(select queue_ticker_max_count || ' ' || queue_ntables from pgq.queue)",
        "2 3",
    ),
    ("pgq.register_consumer('q', 'c')", "1"),
    ("pgq.register_consumer('q', 'c')", "0"),
    ("pgq.register_consumer_at('q', 'at', 1)", "1"),
    ("pgq.register_consumer_at('q', 'at', 1)", "0"),
    ("pgq.register_consumer_at('q', 'at', 999)", Error("tick")),
    ("pgq.next_batch('q', 'c')", "None"),
    ("pgq.next_batch('q', 'nobody')", Error("not subscriber to queue")),
    ("pgq.next_batch_info('q', 'c')", "(,,,,,,)"),
    ("pgq.next_batch_custom('q', 'c', null, null, null)", "(,,,,,,)"),
    ("pgq.insert_event('q', 't', 'a')", "1"),
    ("pgq.insert_event('q', 't', 'b', '1', '2', '3', '4')", "2"),
    ("pgq.insert_event('nosuch', 't', 'a')", Error("queue")),
    ("pgq.insert_event(null, 't', 'a')", Error("null")),
    (
        "pgq.insert_event_raw('q', 77, '2020-01-01', null, 5, 't', 'raw', null, null, null, null)",
        "77",
    ),
    # A given id takes none from the sequence.
    ("pgq.seq_getval((select queue_event_seq from pgq.queue))", "3", "2"),
    ("pgq.ticker('q')", "2"),
    ("pgq.ticker('nosuch')", Error("queue")),
    ("pgq.seq_getval((select queue_tick_seq from pgq.queue))", "2"),
    ("pgq.next_batch('q', 'c')", "1"),
    ("pgq.next_batch('q', 'c')", "1"),
    ("(select cur_tick_id || '/' || prev_tick_id from pgq.next_batch_info('q', 'c'))", "2/1"),
    (
        "(select string_agg(concat_ws(':', ev_id, ev_retry, ev_type, ev_data, ev_extra1,"
        " ev_extra4), ' ') from pgq.get_batch_events(1))",
        "1:t:a 2:t:b:1:4 77:5:t:raw",
    ),
    (
        "(select string_agg(ev_data, ' ') from pgq.get_batch_cursor(1, 'k', 2))",
        "a b",
    ),
    (
        "(select string_agg(ev_data, ' ')"
        " from pgq.get_batch_cursor(1, 'l', 9, 'ev_extra1 is not null'))",
        "b",
    ),
    (
        "(select concat_ws(' ', queue_name, consumer_name, prev_tick_id, tick_id, seq_start,"
        " seq_end) from pgq.get_batch_info(1))",
        "q c 1 2 1 3",
        "q c 1 2 0 2",
    ),
    ("pgq.get_batch_info(4711)", "(,,,,,,,,)"),
    ("(select min(t) ~ '^pgq(ue)?[.]event_' from pgq.batch_event_tables(1) t)", "true"),
    ("pgq.batch_event_sql(4711)", Error("batch not found")),
    ("pgq.get_batch_events(4711)", Error("batch not found")),
    ("pgq.event_retry(1, 1, 0)", "1"),
    ("pgq.event_retry(1, 1, 0)", "0"),
    ("pgq.event_retry(1, 2, now() - interval '1 s')", "1"),
    ("pgq.event_retry(1, 3, 0)", Error("event")),
    ("pgq.batch_retry(1, 3600)", "1"),
    ("pgq.batch_retry(4711, 1)", Error("not found")),
    ("count(*) from pgq.retry_queue", "3"),
    ("pgq.finish_batch(1)", "1"),
    # An end that does nothing must not look like one that did.
    ("pgq.finish_batch(1)", "0", Error("batch not found")),
    ("pgq.maint_retry_events()", "2"),
    # Here the retries are in a tick at once.
    ("pgq.maint_retry_events()", "0"),
    ("(select pgq.force_tick('q') > 0)", "true"),
    # Here a forced tick needs no ids.
    ("(select pgq.seq_getval(queue_event_seq) > 1000 from pgq.queue)", "true", "False"),
    ("(select pgq.ticker() in (0, 1))", "true"),
    ("(select pgq.next_batch('q', 'c') > 1)", "true"),
    (
        "(select string_agg(ev_id || ':' || ev_retry, ' ' order by ev_id)"
        " from pgq.subscription, pgq.consumer, pgq.get_batch_events(sub_batch)"
        " where co_id = sub_consumer and co_name = 'c')",
        "1:1 2:1",
    ),
    (
        "pgq.event_retry_raw('q', 'c', now(), 99, now(), 0, 't', 'd', null, null, null, null)",
        "99",
    ),
    (
        "pgq.event_retry_raw('q', 'nobody', now(), 9, now(), 0, 't', 'd', null, null, null, null)",
        Error("registered"),
    ),
    ("count(*) from pgq.get_consumer_info('q', 'c')", "1"),
    ("count(*) from pgq.get_consumer_info('q')", "2"),
    ("count(*) from pgq.get_consumer_info()", "2"),
    ("count(*) from pgq.get_consumer_info('q', 'nobody')", "0"),
    ("count(*) from pgq.get_consumer_info('nosuch', 'c')", "0"),
    ("count(*) from pgq.get_queue_info('nosuch')", "0"),
    ("queue_name from pgq.get_queue_info('q')", "q"),
    ("queue_ticker_max_count from pgq.get_queue_info()", "2"),
    ("next_tick_id > 1 from pgq.find_tick_helper(1, 1, now(), 0, 1, null)", "true"),
    ("pgq.find_tick_helper(1, 1000, now(), 0, null, null)", "(,,)"),
    ("pgq.quote_fqname('a.B')", 'a."B"'),
    ("pgq.quote_fqname('a')", "public.a"),
    ("pgq.quote_fqname('x\".y;drop')", '"x"""."y;drop"'),
    ("pgq.grant_perms('q')", "1"),
    ("pgq.grant_perms('nosuch')", Error("queue not found")),
    ("pgq.tune_storage('q')", "1"),
    ("pgq.tune_storage('nosuch')", "0"),
    ("pgq.upgrade_schema()", "0"),
    ("pgq.seq_setval((select queue_event_seq from pgq.queue), 5000)", "5000"),
    ("pgq.maint_rotate_tables_step1('nosuch')", "0"),
    ("pgq.maint_rotate_tables_step2()", "0"),
    ("count(*) from pgq.maint_tables_to_vacuum()", "0"),
    ("count(*) from pgq.maint_operations() where func_name ~ 'rotate_tables'", "0"),
    ("pgq.current_event_table('nosuch')", Error("queue not found")),
    ("pgq.ticker('q', 100, now(), 6000)", Error("tick")),
    ("pgq.set_queue_config('q', 'external_ticker', 'true')", "1"),
    ("pgq.ticker('q')", Error("tick")),
    ("pgq.ticker('q', 100, now(), 6000)", "100"),
    ("pgq.seq_getval((select queue_event_seq from pgq.queue))", "6000"),
    ("pgq.set_queue_config('q', 'external_ticker', 'false')", "1"),
    ("pgq.set_queue_config('q', 'ticker_paused', 'true')", "1"),
    ("pgq.ticker('q')", Error("paused")),
    ("pgq.ticker()", "0"),
    ("pgq.unregister_consumer('q', 'nobody')", "0"),
    ("pgq.unregister_consumer('nosuch', 'c')", "0"),
    ("pgq.drop_queue('q')", Error("consumers")),
    ("pgq.unregister_consumer('q', 'c')", "1"),
    ("count(*) from pgq.retry_queue", "0"),
    ("pgq.drop_queue('q', true)", "1"),
    ("pgq.drop_queue('q')", Error("queue")),
    ("count(*) from pgq.queue", "0"),
]


def run(db: Connection, call: str) -> str:
    """The result of a call as text, or the words of its error, in small letters."""
    try:
        ((result,),) = db.rows(f"select {call}" if " from " in call else f"select {call}::text")
    except psycopg.Error as error:
        return str(error.diag.message_primary).lower()
    return "true" if result is True else str(result)


def compare(db: Connection, column: int) -> None:
    db.execute("create temporary sequence foreign_ids")
    for row in CALLS:
        expected = row[min(column, len(row) - 1)]
        found = run(db, row[0])
        if isinstance(expected, Error):
            assert expected in found, row[0]
        else:
            assert found == expected, row[0]


@pytest.fixture(scope="module")
def c_pgq(debian: Postgres) -> Iterator[Connection]:
    """A database with the extension."""
    with empty_database(debian) as url, connect(url) as db:
        db.execute("create extension pgq")
        yield db


def test_calls_give_what_pgq_gives(db: Connection) -> None:
    compare(db, 2)


@pytest.mark.program("postgresql-15-pgq3")
def test_c_pgq_gives_the_same(c_pgq: Connection) -> None:
    compare(c_pgq, 1)


PUBLISHED = """
select pgq.create_queue('t');
create table own (id int primary key, a text, _pgq_ev_type text, _pgq_ev_data text,
    _pgq_ev_extra1 text, _pgq_ev_extra2 int, _pgq_ev_extra3 text, _pgq_ev_extra4 text);
create table routed (id int primary key, a text, _pgq_ev_extra4 date);
create trigger t1 after insert or update or delete on own for each row
    execute function pgq.{0}('t', 'backup', 'ignore=a', 'ev_extra3=upper(a)');
create trigger t2 after insert or update or delete on routed for each row
    execute function pgq.{0}('t', 'backup');
insert into own values (1, 'x', 't', 'd', 'e1', 2, 'e3', 'e4');
insert into own values (2);
update own set a = 'y' where id = 1;
update own set _pgq_ev_extra4 = 'new' where id = 1;
update own set _pgq_ev_type = 'u' where id = 2;
delete from own;
insert into routed values (1, 'b', '2026-01-31');
insert into routed values (2);
update routed set a = null;
update routed set _pgq_ev_extra4 = null;
delete from routed;
"""


def published(db: Connection, function: str) -> list[tuple[object, ...]]:
    """The events of statements on tables with a trigger function."""
    for statement in PUBLISHED.format(function).split(";\n"):
        db.execute(statement.encode())
    table = db.value("select pgq.current_event_table('t')")
    fields = "ev_type, ev_data, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
    events = db.rows(f"select {fields} from {table} order by ev_id")
    db.execute("drop table own, routed")
    db.value("select pgq.drop_queue('t')")
    return events


@pytest.mark.program("postgresql-15-pgq3")
@pytest.mark.parametrize("function", ["jsontriga", "logutriga", "sqltriga"])
def test_columns_of_fields_do_what_they_do_in_pgq(
    db: Connection, c_pgq: Connection, function: str
) -> None:
    assert published(db, function) == published(c_pgq, function)

"""Each role does what PgQ lets it do, and nothing else."""

import pytest

from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.logins import as_login

PRODUCING = (
    "select pgq.insert_event('q', 't', 'x')",
    "select pgq.current_event_table('q')",
    "insert into pgque.event_1_0 (ev_data) values ('x')",
    "select pgq_ext.set_batch_done('c', 1)",
)
CONSUMING = (
    "select pgq.register_consumer('q', 'new')",
    "select pgq.next_batch('q', 'c')",
    "select count(*) from pgq.get_batch_events(1)",
    "select count(*) from pgq.get_batch_cursor(1, 'k', 1, 'true')",
    "select count(*) from pgque.event_1",
    "select pgq.batch_event_sql(1)",
    "select pgq.batch_retry(1, 0)",
    "select pgq.force_tick('q')",
    "select pgq.finish_batch(1)",
    "select pgq_coop.next_batch('q', 'shared', 'w')",
)
ADMINISTERING = (
    "select pgq.create_queue('more')",
    "update pgq.queue set queue_ticker_max_count = 5",
    "select pgq.ticker()",
    "select * from pgq.maint_operations()",
    "select count(*) from pgq.retry_queue",
    "select pgq.drop_queue('q', true)",
)
LOOKING = (
    "select pgq.version(), pgq_coop.version(), pgq_ext.version()",
    "select count(*) from pgq.get_queue_info()",
    "select count(*) from pgq.get_consumer_info()",
    "select count(*) from pgq.queue, pgq.consumer, pgq.subscription, pgq.tick",
    "select pgq.seq_getval(queue_event_seq), pgq.quote_fqname(queue_data_pfx) from pgq.queue",
)
OWNING = (
    "select pgq.uninstall()",
    "delete from pgq.queue_extra",
    "select * from pgq_ext.completed_batch",
    "delete from pgq_ext.completed_batch",
)
MAY = {
    "pgq_writer": (*PRODUCING, *LOOKING),
    "pgq_reader": (*CONSUMING, *LOOKING),
    "pgq_admin": (*PRODUCING, *CONSUMING, *ADMINISTERING, *LOOKING),
    "pg_monitor": LOOKING,  # a role of somebody else
}


@pytest.fixture(autouse=True)
def queue(db: Connection) -> None:
    db.value("select pgq.create_queue('q')")
    db.value("select pgq.register_consumer('q', 'c')")
    db.value("select pgq.insert_event('q', 't', 'x')")
    db.tick()
    db.value("select setval('pgque.batch_id_seq', 1, false)")
    assert db.value("select pgq.next_batch('q', 'c')") == 1


@pytest.mark.parametrize("role", MAY)
def test_a_login_does_what_its_role_may(database_url: str, role: str) -> None:
    with connect(as_login(database_url, role)) as db:
        for statement in (*PRODUCING, *CONSUMING, *ADMINISTERING, *LOOKING, *OWNING):
            with db.transaction(force_rollback=True):
                if statement in MAY[role]:
                    db.execute(statement.encode())
                    continue
                with refused("42501"):
                    db.execute(statement.encode())


def test_roles_of_pgque_alone_call_nothing_of_pgq(database_url: str) -> None:
    with connect(as_login(database_url, "pgque_reader", "pgque_writer")) as db:
        for statement in (PRODUCING[0], CONSUMING[0]):
            with refused("42501"):
                db.execute(statement.encode())


def test_functions_that_write_run_with_a_fixed_search_path(db: Connection) -> None:
    open_ones = db.rows(
        "select p.oid::regprocedure::text from pg_proc p"
        " where p.pronamespace::regnamespace::text ~ '^pgq(_coop|_ext)?$' and p.prosecdef"
        " and p.proconfig is null order by 1"
    )
    assert [name for (name,) in open_ones] == [
        "pgq.insert_event(text,text,text)",
        "pgq.insert_event(text,text,text,text,text,text,text)",
        "pgq.next_batch(text,text)",
    ]


def test_objects_of_a_caller_stand_in_for_nothing(database_url: str) -> None:
    with connect(database_url) as db:
        db.execute("create schema evil; grant all on schema evil to public")
    with connect(as_login(database_url, "pgq_writer", "pgq_reader")) as db:
        for name, arguments in (("nextval", "regclass"), ("format", "text, variadic text[]")):
            db.execute(
                f"create function evil.{name}({arguments}) returns text language plpgsql"
                " as $$ begin raise 'sprung'; end $$".encode()
            )
        db.execute("create table evil.queue_extra (per_tx_limit int)")
        db.execute("set search_path = evil, pg_catalog")
        db.value("select pgq.insert_event('q', 't', 'x')")
        db.value("select pgq.next_batch('q', 'c')")
        db.rows("select * from pgq.get_batch_cursor(1, 'k', 1)")

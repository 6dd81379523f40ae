"""Who may do what: readers consume, writers produce, admins run the queue, others do nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.queues import Connection, connect, make_queue, queue_id, refused, rows, value

UNPINNED_FILE = Path(__file__).parents[2] / "build" / "unpinned.txt"

PRODUCE = [
    "pgque.send('q', 'x'::text)",
    "pgque.send('q', '{}'::jsonb)",
    "pgque.send('q', 't', 'x'::text)",
    "pgque.send('q', 't', '{}'::jsonb)",
    "pgque.send_batch('q', '{x}'::text[])",
    "pgque.send_batch('q', '{1}'::jsonb[])",
    "pgque.send_batch('q', 't', '{x}'::text[])",
    "pgque.send_batch('q', 't', '{1}'::jsonb[])",
    "pgque.insert_event('q', 't', 'x')",
    "pgque.insert_event_bulk('q', 't', '{x}')",
    "pgque.insert_event('q', 't', 'x', '', '', '', '')",
    "pgque.current_event_table('q')",
    "pgque.dlq_replay_all('q')",
]
CONSUME = [
    "pgque.register_consumer('q', 'new')",
    "pgque.register_consumer_at('q', 'new', 1)",
    "pgque.unregister_consumer('q', 'c')",
    "pgque.subscribe('q', 'new')",
    "pgque.unsubscribe('q', 'c')",
    "pgque.register_subconsumer('q', 'new', 'worker')",
    "pgque.subscribe_subconsumer('q', 'new', 'worker')",
    "pgque.next_batch('q', 'c')",
    "pgque.next_batch('q', 'new', 'worker')",
    "pgque.next_batch('q', 'new', 'worker', '1 hour')",
    "pgque.next_batch_custom('q', 'new', 'worker', null, null, null, null)",
    "pgque.receive_coop('q', 'new', 'worker')",
    "pgque.touch_subconsumer('q', 'shared', 'worker')",
    "pgque.unregister_subconsumer('q', 'shared', 'worker')",
    "pgque.unsubscribe_subconsumer('q', 'shared', 'worker')",
    "pgque.next_batch_info('q', 'c')",
    "pgque.next_batch_custom('q', 'c', null, null, null)",
    "pgque.next_batch_custom('q', 'c', null, null, null, null)",
    "pgque.claim_batch('q', 'c', 'me')",
    "pgque.receive('q', 'c')",
    "pgque.get_lease_info('q', 'c')",
    "pgque.get_consumer_info()",
    "pgque.get_consumer_info('q')",
    "pgque.get_consumer_info('q', 'c')",
    "pgque.dlq_inspect('q')",
    "pgque.dlq_summary('q')",
]
CONSUME_A_BATCH = [
    "pgque.get_batch_events(0)",
    "pgque.get_batch_info(0)",
    "pgque.batch_read_plan(0, 1)",
    "pgque.finish_batch(0)",
    "pgque.renew_batch(0, 'me', 1)",
    "pgque.ack_batch(0, 'me', 1)",
    "pgque.release_batch(0, 'me', 1)",
    "pgque.ack(0)",
    "pgque.nack(0, null)",
    "pgque.nack_batch(0, '{1}')",
    "pgque.dead_letter_batch(0, '{1}', 'bad')",
    "pgque.event_retry(0, 1, 0)",
    "pgque.event_retry(0, 1, now())",
]
RUN = [
    "pgque.create_queue('new')",
    "pgque.drop_queue('q', true)",
    "pgque.set_queue_config('q', 'max_retries', '1')",
    "pgque.insert_event_raw('q', null, null, null, null, 't', 'x', null, null, null, null)",
    "pgque.ticker()",
    "pgque.ticker('q')",
    "pgque.force_next_tick('q')",
    "pgque.force_tick('q')",
    "pgque.find_tick_helper(1, 1, now(), 0, null, null)",
    "pgque.event_retry_raw('q', 'c', now(), 1, now(), 0, 't', 'x', null, null, null, null)",
    "pgque.ticker_pace()",
    "pgque.set_tick_period_ms(100)",
    "pgque.set_metadata_rotation_period('1 minute')",
    "pgque.grant_perms('q')",
    "pgque.tune_storage('q')",
    "pgque.quote_fqname('a.b')",
    "pgque.seq_getval('pgque.event_1_id_seq')",
    "pgque.seq_setval('pgque.event_1_id_seq', 1)",
    "pgque.upgrade_schema()",
    "pgque.maint_operations()",
    "pgque.maint_tables_to_vacuum()",
    "pgque.maint_rotate_metadata()",
    "pgque.maint()",
    "pgque.maint_rotate_tables_step1('q')",
    "pgque.maint_rotate_tables_step2()",
    "pgque.maint_retry_events()",
    "pgque.maint_compact_positions()",
    "pgque.maint_compact_ticks()",
    "pgque.dlq_purge('q')",
]
RUN_A_BATCH = [
    "pgque.batch_event_sql(0)",
    "pgque.batch_event_tables(0)",
    "pgque.get_batch_cursor(0, 'cursor', 1)",
    "pgque.get_batch_cursor(0, 'cursor', 1, 'true')",
    "pgque.batch_retry(0, 1)",
]
TABLES = ["queue", "consumer", "tick", "subscription", "config", "retry_queue", "dead_letter"]
LOCKED_TABLES = ["queue", "tick", "position_log", "subscription_base", "event_1_0", "dead_letter"]


@pytest.fixture(scope="module")
def shared(server: Any, template_database: str) -> Iterator[Connection]:
    """A database of the module, and users with one role each, and a stranger with none."""
    with connect(server.url) as main:
        main.execute("create role t_stranger")
        for name in ("reader", "writer", "admin"):
            main.execute(f"create role t_{name} in role pgque_{name}".encode())
        main.execute(f"create database t_roles template {template_database}".encode())
        with connect(server.database_url("t_roles")) as db:
            make_queue(db)
            value(db, "select pgque.register_subconsumer('q', 'shared', 'worker')")
            yield db
        main.execute("drop database t_roles")
        main.execute("drop role t_stranger, t_reader, t_writer, t_admin")


@pytest.fixture
def db(shared: Connection) -> Iterator[Connection]:
    """The shared database, in a transaction that is rolled back."""
    with shared.transaction(force_rollback=True):
        yield shared


@pytest.fixture
def loop(database_url: str, shared: Connection) -> Iterator[Connection]:
    """Outside a transaction, where procedures may commit."""
    with connect(database_url) as connection:
        connection.execute("update pgque.config set ticker_slot = '1 ms'")
        yield connection


def call_as(db: Connection, role: str, call: str) -> None:
    db.execute(f"set local role {role}".encode())
    db.execute(f"select * from {call}".encode())


class TestRoles:
    @pytest.mark.parametrize("call", PRODUCE)
    def test_a_writer_produces(self, db: Connection, call: str) -> None:
        call_as(db, "t_writer", call)

    @pytest.mark.parametrize("call", CONSUME + RUN)
    def test_a_writer_neither_consumes_nor_runs_the_queue(self, db: Connection, call: str) -> None:
        with refused("42501"):
            call_as(db, "t_writer", call)

    @pytest.mark.parametrize("call", CONSUME)
    def test_a_reader_consumes(self, db: Connection, call: str) -> None:
        call_as(db, "t_reader", call)

    @pytest.mark.parametrize("call", CONSUME_A_BATCH)
    def test_a_reader_may_ask_for_any_batch(self, db: Connection, call: str) -> None:
        with refused("PQ003"):
            call_as(db, "t_reader", call)

    @pytest.mark.parametrize("call", CONSUME_A_BATCH)
    def test_a_writer_may_ask_for_no_batch(self, db: Connection, call: str) -> None:
        with refused("42501"):
            call_as(db, "t_writer", call)

    @pytest.mark.parametrize("call", CONSUME_A_BATCH + RUN_A_BATCH)
    def test_an_admin_may_ask_for_any_batch(self, db: Connection, call: str) -> None:
        with refused("PQ003"):
            call_as(db, "t_admin", call)

    @pytest.mark.parametrize("call", PRODUCE + RUN + RUN_A_BATCH)
    def test_a_reader_neither_produces_nor_runs_the_queue(self, db: Connection, call: str) -> None:
        with refused("42501"):
            call_as(db, "t_reader", call)

    @pytest.mark.parametrize("call", PRODUCE + CONSUME + RUN)
    def test_an_admin_does_everything(self, db: Connection, call: str) -> None:
        call_as(db, "t_admin", call)

    @pytest.mark.parametrize("call", PRODUCE + CONSUME + CONSUME_A_BATCH + RUN)
    def test_a_stranger_does_nothing(self, db: Connection, call: str) -> None:
        with refused("42501"):
            call_as(db, "t_stranger", call)

    def test_an_admin_runs_the_ticker_loop(self, loop: Connection) -> None:
        loop.execute("set role t_admin")
        loop.execute("call pgque.ticker_loop()")

    @pytest.mark.parametrize("role", ["t_reader", "t_writer", "t_stranger"])
    def test_others_do_not_run_the_ticker_loop(self, loop: Connection, role: str) -> None:
        loop.execute(f"set role {role}".encode())
        with refused("42501"):
            loop.execute("call pgque.ticker_loop()")

    @pytest.mark.parametrize("table", TABLES)
    def test_a_reader_sees_the_queues_state(self, db: Connection, table: str) -> None:
        call_as(db, "t_reader", f"pgque.{table}")

    @pytest.mark.parametrize("table", TABLES)
    def test_a_writer_does_not(self, db: Connection, table: str) -> None:
        with refused("42501"):
            call_as(db, "t_writer", f"pgque.{table}")

    @pytest.mark.parametrize("role", ["t_reader", "t_writer", "t_admin"])
    @pytest.mark.parametrize("table", LOCKED_TABLES)
    @pytest.mark.parametrize("verb", ["delete from pgque.{}", "truncate pgque.{}"])
    def test_nobody_changes_tables_by_hand(
        self, db: Connection, role: str, table: str, verb: str
    ) -> None:
        db.execute(f"set role {role}".encode())
        with refused("42501"):
            db.execute(verb.format(table).encode())

    def test_a_writer_does_not_read_events(self, db: Connection) -> None:
        with refused("42501"):
            call_as(db, "t_writer", f"pgque.event_{queue_id(db)}")

    @pytest.mark.parametrize("role", ["t_reader", "t_writer", "t_admin", "t_stranger"])
    def test_nobody_creates_objects_in_the_schema(self, db: Connection, role: str) -> None:
        db.execute(f"set role {role}".encode())
        with refused("42501"):
            db.execute("create table pgque.mine ()")

    def test_an_admin_may_run_the_sql_of_a_batch(self, db: Connection) -> None:
        value(db, "select pgque.force_next_tick('q')")
        value(db, "select pgque.ticker('q')")
        db.execute("set role t_admin")
        batch = value(db, "select pgque.next_batch('q', 'c')")
        assert rows(db, value(db, "select pgque.batch_event_sql(%s)", batch)) == []


def test_public_may_execute_nothing(db: Connection) -> None:
    open_to_all = rows(
        db,
        "select p.oid::regprocedure::text from pg_proc p"
        " where p.pronamespace = 'pgque'::regnamespace"
        " and has_function_privilege('public', p.oid, 'execute')",
    )
    assert open_to_all == []


def test_public_may_see_no_table(db: Connection) -> None:
    open_to_all = rows(
        db,
        "select c.oid::regclass::text from pg_class c, aclexplode(c.relacl) a"
        " where c.relnamespace = 'pgque'::regnamespace and a.grantee = 0",
    )
    assert open_to_all == []


def test_no_role_may_execute_what_is_in_no_list(db: Connection) -> None:
    """Internal functions trust their callers; they belong to the installing role alone."""
    internal = [
        "open_batch",
        "open_coop_batch",
        "append_position",
        "move_consumer",
        "end_subconsumer",
        "make_cooperative",
        "settle_events",
        "find_batch",
    ]
    granted = rows(
        db,
        "select p.proname, a.grantee::regrole::text from pg_proc p, aclexplode(p.proacl) a"
        " where p.proname = any (%s) and a.grantee <> p.proowner",
        internal,
    )
    assert granted == []


def test_every_security_definer_function_pins_its_search_path_or_is_listed(
    db: Connection,
) -> None:
    lines = UNPINNED_FILE.read_text().splitlines()
    listed = {line.split()[0] for line in lines if line and not line.startswith("#")}
    unpinned = rows(
        db,
        "select distinct n.nspname || '.' || p.proname from pg_proc p"
        " join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'pgque' and p.prosecdef and p.proname !~ '^event_[0-9]+_insert'"
        " and not exists (select from unnest(p.proconfig) c where c like 'search_path=%')",
    )
    assert {name for (name,) in unpinned} <= listed


def test_generated_functions_pin_nothing_and_name_every_schema(db: Connection) -> None:
    number = queue_id(db)
    db.execute("set search_path = ''")
    assert value(db, f"select pgque.event_{number}_insert('t', 'x')") > 0
    assert len(value(db, f"select pgque.event_{number}_insert_bulk('t', '{{x}}')")) == 1

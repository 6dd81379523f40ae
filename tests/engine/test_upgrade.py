"""From every release to this version: with all that was there and all who wait, to the same end."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues import slot_batches, slots
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.databases import as_user, empty_database, owned_database
from tests.support.servers.released import RELEASES, Release

INSTALL = INSTALL_SQL.read_bytes()
pytestmark = pytest.mark.parametrize("released", RELEASES, ids=lambda release: release.version)


# What the catalog says of the schema, apart from ids.
OURS = "relnamespace = 'pgque'::regnamespace"
CATALOG = {
    "tables": f"select relname, relkind::text, reloptions, relacl::text from pg_class where {OURS}",
    "columns": "select c.relname, row_number() over (partition by a.attrelid order by a.attnum),"
    " a.attname, format_type(a.atttypid, a.atttypmod),"
    " a.attnotnull, a.attidentity::text, pg_get_expr(d.adbin, d.adrelid)"
    " from pg_attribute a join pg_class c on c.oid = a.attrelid"
    " left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum"
    f" where c.{OURS} and a.attnum > 0 and not a.attisdropped",
    "constraints": "select conrelid::regclass::text, conname, pg_get_constraintdef(oid)"
    " from pg_constraint where connamespace = 'pgque'::regnamespace",
    "indexes": "select indexrelid::regclass::text, pg_get_indexdef(indexrelid) from pg_index"
    f" join pg_class c on c.oid = indexrelid where {OURS}",
    "functions": "select oid::regprocedure::text, pg_get_functiondef(oid), proacl::text,"
    " proowner::regrole::text from pg_proc where pronamespace = 'pgque'::regnamespace",
    "triggers": "select tgname, pg_get_triggerdef(t.oid) from pg_trigger t"
    f" join pg_class c on c.oid = tgrelid where {OURS} and not tgisinternal",
    "views": "select relname, pg_get_viewdef(oid) from pg_class"
    f" where {OURS} and relkind in ('v', 'm')",
    "inheritance": "select inhrelid::regclass::text, a.attname, inhparent::regclass::text,"
    " a.attislocal, a.attinhcount from pg_inherits join pg_class c on c.oid = inhrelid"
    " join pg_attribute a on a.attrelid = c.oid"
    f" where {OURS} and c.relkind = 'r' and attnum > 0",
    "types": "select typname, typtype::text, typacl::text from pg_type"
    " where typnamespace = 'pgque'::regnamespace",
}

# What a session of the old version that waits for the upgrade may call next.
STAYS = re.compile(
    r"pgque\.(add_consumer|add_field_columns|begin_life|check_consumer_name|check_firing|check_log_name"
    r"|check_no_batch|check_slot_end|check_window_retained|find_deployed|find_small_batch"
    r"|maint_compact_history|maint_rotate_metadata|make_cooperative|move_consumer|narrow_to_count|note_attempt|note_switch|statement_end"
    r"|is_snapshot_held|snapshot_holders|update_fragment|wait_for_log|count_between\(text"
    r"|change_letter|check_key|describe_change\(text,oid|insert_change|is_change_sent|key_fragment"
    r"|(?:database|ticker|rotation|failure|consumer)_health|event_cutoff|event_\d+_read\(.*timestamp"
    r"|refuse_change|refuse_trigger\(text|row_as_json|row_as_url|trigger_arguments"
    r"|check_not_leased|check_only_batch|attach_event_child"
    r"|queue_parameters|refuse_pages|refuse_slot\(pgque\.subscription\)|slot_condition|history_period|removable_stagings"
    r"|left_objects|is_tick_log_retained|refuse_registered|check_ticks"
    r"|check_fingerprint|check_columns|addon_maintenance"
    r"|make_ticks\(pgque.tick_due|unfinished_seqs|refuse_partitioned|snapshot_conditions)"
)


@pytest.fixture
def database_url(empty_url: str) -> str:
    return empty_url


@pytest.fixture
def old(db: Connection, released: Release) -> Connection:
    """A database with the released version."""
    db.execute(released.sql())
    return db


@pytest.fixture
def fresh(server: Any) -> Iterator[Connection]:
    """A database with this version."""
    with empty_database(server) as url, connect(url) as db:
        db.execute(INSTALL)
        yield db


def catalog(db: Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {name: db.rows(f"{sql} order by 1, 2") for name, sql in CATALOG.items()}


def fill(db: Connection) -> None:
    """Something of everything, in queues of which one has events in all its tables."""
    db.make_queue("q", consumers=("done", "busy", "late"), ticker_max_count="7", max_retries="3")
    ids = db.send("one", "two", "three", "four")
    db.tick()
    for consumer in ("done", "busy"):
        batch = db.next_batch(consumer=consumer)
        db.value("select pgque.nack_batch(%s, %s, '1 hour', 'torn')", batch, ids[:1])
        db.value("select pgque.dead_letter_batch(%s, %s, 'bad')", batch, ids[1:2])
        if consumer == "done":
            db.finish(batch)
    db.rotate()
    db.publish("five")
    db.rotate()
    db.send("not ticked")

    db.make_queue("leased")
    db.publish("mine", queue="leased")
    db.value("select batch_id from pgque.claim_batch('leased', 'c', 'me', '1 day')")

    db.make_queue("shared", consumers=())
    for worker in ("w1", "w2"):
        db.value("select pgque.register_subconsumer('shared', 'team', %s)", worker)
    db.publish("for w1", queue="shared")
    db.value("select pgque.next_batch('shared', 'team', 'w1')")
    db.publish("for w2", queue="shared")
    db.execute("update pgque.config set tick_period_ms = 50")


def contents(db: Connection, columns: dict[str, list[str]]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows. The tables of a queue's events are read by name; a log's halves are partitions."""

    def rows(table: str, names: str) -> list[tuple[Any, ...]]:
        only = "only" if table.startswith("event_") else ""
        return db.rows(f"select {names} from {only} pgque.{table} t order by ({names})::text")

    return {table: rows(table, ", ".join(names)) for table, names in columns.items()}


def columns_of(db: Connection) -> dict[str, list[str]]:
    """The columns of each table, but for the version."""
    return dict(
        db.rows(
            "select c.relname, array_agg('t.' || a.attname order by a.attnum)"
            " from pg_class c join pg_attribute a on a.attrelid = c.oid"
            " where c.relnamespace = 'pgque'::regnamespace and c.relkind = 'r' and a.attnum > 0"
            " and not a.attisdropped and c.relname <> 'version_history'"
            " and a.attname <> 'schema_version'"
            " group by 1"
        )
    )


def test_every_row_is_kept(old: Connection, fresh: Connection) -> None:
    """In the columns that both versions have; the state of maintenance is not among them."""
    fill(old)
    fill(fresh)
    new = columns_of(fresh)
    columns = {
        table: [name for name in names if name in new[table]]
        for table, names in columns_of(old).items()
        if table
        not in ("log_rotation", "rotation_floor", "partition_held")  # see TestEventsThatWait
    }
    before = contents(old, columns)
    old.execute(INSTALL)
    assert contents(old, columns) == before


def test_everybody_goes_on_where_they_were(old: Connection) -> None:
    fill(old)
    batch = old.next_batch(consumer="busy")
    before = old.events(batch)
    leased = old.value("select batch_id from pgque.get_lease_info('leased', 'c')")
    shared = old.value("select pgque.next_batch('shared', 'team', 'w1')")
    old.execute(INSTALL)

    assert (old.next_batch(consumer="busy"), old.events(batch)) == (batch, before)
    old.finish(batch)
    with refused("PQ012"):
        old.value("select pgque.ack_batch(%s, 'other', 1)", leased)
    old.value("select pgque.ack_batch(%s, 'me', 1)", leased)
    assert old.value("select pgque.next_batch('shared', 'team', 'w1')") == shared
    work = "select ev_data from pgque.get_batch_events(pgque.next_batch('shared', 'team', %s))"
    assert old.rows(work, "w2") == [("for w2",)]
    assert old.received(consumer="busy") == ["five", "not ticked"]
    assert old.drain(consumer="late") == ["one", "two", "three", "four", "five", "not ticked"]


def test_the_schema_is_that_of_a_fresh_installation(old: Connection, fresh: Connection) -> None:
    fill(old)
    fill(fresh)
    old.execute(INSTALL)
    upgraded, new = catalog(old), catalog(fresh)
    upgraded["functions"] = [
        function for function in upgraded["functions"] if not STAYS.match(function[0])
    ]
    for kind, found in new.items():
        assert upgraded[kind] == found, kind


def test_the_history_names_both_versions(old: Connection, released: Release) -> None:
    for _ in range(2):
        old.execute(INSTALL)
    found = old.rows("select version from pgque.version_history order by installed_at")
    assert found == [(released.version,), (old.value("select pgque.version()"),)]


def test_the_older_file_is_refused_afterwards(old: Connection, released: Release) -> None:
    old.execute(INSTALL)
    before = catalog(old)
    with refused("PQ021", released.version, old.value("select pgque.version()")):
        old.execute(released.sql())
    old.execute("rollback")
    assert catalog(old) == before


class TestLocks:
    def test_a_consumers_open_transaction_holds_the_upgrade_up_and_is_named(
        self, old: Connection
    ) -> None:
        old.make_queue()
        old.publish("a")
        consumer = old.another()
        old.execute("set lock_timeout = '300ms'")
        with consumer.transaction():
            batch = consumer.next_batch()
            with refused("55P03", str(consumer.info.backend_pid)):
                old.execute(INSTALL)
            old.execute("rollback")
            consumer.finish(batch)
        old.execute(INSTALL)
        assert (old.drain(), old.value("show lock_timeout")) == ([], "300ms")

    def test_no_lock_is_taken_later_than_all_at_once(self, old: Connection) -> None:
        """Or it would be waited for with others in hand."""
        old.make_queue()
        # All tables and views but those of events are taken at once.
        free = old.rows(
            "select c.relname from pg_class c where c.relnamespace = 'pgque'::regnamespace"
            " and (c.relkind = 'S' or c.relkind in ('r', 'v', 'm', 'p') and c.relname ~ '^event')"
        )
        old.execute(INSTALL.replace(b"\ncommit;", b""))
        locked = old.another().rows(
            "select c.relname from pg_locks l join pg_class c on c.oid = l.relation"
            " where l.pid = %s and l.mode not in ('AccessShareLock', 'RowShareLock',"
            " 'RowExclusiveLock', 'ShareUpdateExclusiveLock')",
            old.info.backend_pid,
        )
        old.execute("rollback")
        assert set(free).isdisjoint(locked)
        assert ("queue",) in locked

    def test_who_holds_one_table_and_asks_for_another_gets_it(self, old: Connection) -> None:
        """Whoever waits for the upgrade while the upgrade waits for them would be a deadlock."""
        old.make_queue()
        batch = old.open_batch("a")
        consumer = old.another()
        with ThreadPoolExecutor() as pool:
            with consumer.transaction():
                consumer.execute("lock table pgque.tick in access share mode")
                upgrading = pool.submit(old.execute, INSTALL)
                consumer.wait_until_blocked(old)
                consumer.send("b")
                consumer.finish(batch)
            upgrading.result()
        assert old.received() == ["b"]

    def test_calls_that_wait_for_the_upgrade_are_served(
        self, old: Connection, background: ThreadPoolExecutor
    ) -> None:
        """They began as functions of the old version."""
        calls = (
            "select pgque.send('q', 'b'::text)",
            "select pgque.next_batch('q', 'c')",
            "select batch_id from pgque.claim_batch('q', 'leased', 'me')",
            "select payload from pgque.receive('q', 'other')",
            "select pgque.ticker('q')",
            "select pgque.maint_retry_events()",
        )
        old.make_queue(consumers=("c", "leased", "other"))
        old.publish("a")
        watch, waiting = old.another(), [old.another() for _ in calls]
        for db, call in zip(waiting, calls, strict=True):
            # A session has read a function by its second call, and then waits within it.
            with db.transaction(force_rollback=True):
                db.execute(call.encode())
        old.execute(INSTALL.replace(b"\ncommit;", b""))
        answers = [
            background.submit(Connection.rows, db, call)
            for db, call in zip(waiting, calls, strict=True)
        ]
        for db in waiting:
            watch.wait_until_blocked(db)
        old.execute("commit")
        assert [len(answer.result()) for answer in answers] == [1] * len(calls)

    def test_prepared_statements_of_producers_and_consumers_live_on(self, old: Connection) -> None:
        old.make_queue()
        app = old.another()
        app.prepare_threshold = 0

        def once(text: str) -> None:
            app.value("select pgque.send('q', 't', %s::text)", text)
            old.value("select pgque.force_next_tick('q')")
            old.value("select pgque.ticker('q')")
            found = app.rows("select * from pgque.receive('q', 'c', 10)")
            assert [row[3] for row in found] == [text]
            assert app.value("select pgque.ack(%s)", found[0][1]) == 1

        once("before")
        old.execute(INSTALL)
        once("after")


class TestEventsThatWait:
    """In 0.3, with the policy pause, events waited for a failed event of their key."""

    @pytest.fixture
    def waiting(self, old: Connection) -> Connection:
        """A slot that w holds: a1 failed and is due in an hour, a2 waits for it, b has no key.

        a1 and a2 are acked. a3 is in a page that is not acked, which a3 is left out of.
        """
        old.make_queue(consumers=())
        slots.subscribe(old, 0, 1)
        slots.claim(old)
        old.value("select pgque.set_partition_policy('q', 'c', 'pause')")
        first, *_ = slots.publish_keyed(old, ("a", "a1"), ("a", "a2"))
        slots.receive(old, 0, 1)
        slots.nack(old, first, 0, 1, after="1 hour")
        slots.ack(old, 0, 1)
        slots.publish_keyed(old, ("a", "a3"), (None, "b"))
        assert slots.texts(slots.receive(old, 0, 1)) == ["b"]
        return old

    def test_are_delivered_by_retries(self, waiting: Connection) -> None:
        waiting.execute(INSTALL)
        with refused("PQ012"):  # w may have stored what its page was before
            slots.ack(waiting, 0, 1)
        slots.claim(waiting)
        assert slots.drain_slot(waiting, 0, 1) == ["a3", "b"]
        found = waiting.rows(
            "select ev_data, ev_retry, ev_retry_after > now() + interval '50 minutes'"
            " from pgque.retry_queue order by ev_id"
        )
        assert found == [("a1", 1, True), ("a2", None, True)]
        waiting.execute("update pgque.retry_queue set ev_retry_after = now()")
        waiting.value("select pgque.maint_retry_events()")
        waiting.tick()
        assert slots.drain_slot(waiting, 0, 1) == ["a1", "a2"]

    def test_let_an_open_batch_be_finished_first(self, waiting: Connection) -> None:
        """Its results may be stored already, without the events that wait."""
        slots.release(waiting)
        claimed = slot_batches.taken(waiting, 0, 1)
        with refused("PQ016", 'slot "c#0/1" on queue "q"', f"batch {claimed.batch} open"):
            waiting.execute(INSTALL)
        waiting.execute("rollback")
        slot_batches.finish(waiting, claimed)
        waiting.execute(INSTALL)
        assert waiting.value("select count(*) from pgque.retry_queue") == 3


def owners(db: Connection) -> set[str]:
    """Who owns an object of the schema."""
    return {
        owner
        for (owner,) in db.rows(
            "select relowner::regrole::text from pg_class"
            " where relnamespace = 'pgque'::regnamespace"
            " union select proowner::regrole::text from pg_proc"
            " where pronamespace = 'pgque'::regnamespace"
        )
    }


def test_what_an_owner_installed_stays_theirs(
    server: Any, database_url: str, released: Release
) -> None:
    with (
        owned_database(server, "nocreaterole") as database,
        connect(database.owner_url) as owner,
        connect(database.owner_url) as upgrading,
    ):
        owner.execute(released.sql())
        fill(owner)
        upgrading.execute(INSTALL)
        assert owners(owner) == {database.owner}
        assert owner.received(consumer="late")[-1] == "not ticked"
        assert owner.value("select pgque.maint()") >= 0


def test_somebody_else_cannot_upgrade(old: Connection, database_url: str) -> None:
    old.execute("create role passerby login")
    old.execute(f"grant create on database {old.info.dbname} to passerby".encode())
    try:
        with psycopg.connect(as_user(database_url, "passerby")) as db, refused("42501", "member"):
            db.execute(INSTALL)
    finally:
        old.execute("drop owned by passerby; drop role passerby")

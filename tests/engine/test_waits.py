"""No maintenance, upgrade or drop waits without limit for somebody else (promise 7)."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.conftest import INSTALL_SQL
from tests.support.queues.sql import Connection, refused

# More than any of these steps may wait for one lock, and less than for ever.
PATIENCE = "8s"
MODES = (
    "row exclusive",
    "share row exclusive",
    # Every step waits its second for every table.
    pytest.param("access exclusive", marks=pytest.mark.slow),
)


def be_used(db: Connection) -> None:
    """Leaves something to do for each step of maintenance."""
    db.execute("update pgque.config set metadata_rotation_period = '0'")
    for _ in range(3):
        ids = db.send("a", "b")
        batch = db.open_batch()
        db.value("select pgque.nack_batch(%s, %s, '0 seconds', 'torn')", batch, ids[:1])
        db.finish(batch)
        db.rotate()


@pytest.fixture
def busy(db: Connection) -> Connection:
    db.make_queue(rotation_period="1 microsecond", max_retries="3")
    be_used(db)
    db.value("select pgque.send_at('q', 't', 'later'::text, now() - interval '1 s')")
    db.value("select pgque.send_idem('q', 't', 'once'::text, 'key', '1 microsecond')")
    db.execute(f"set statement_timeout = '{PATIENCE}'")
    return db


def steps(db: Connection) -> list[str]:
    """All calls of maintenance that a scheduler may make."""
    found = db.rows(
        "select case when func_arg is null then format('select pgque.%I()', func_name)"
        " else format('select pgque.%I(%L)', func_name, func_arg) end from pgque.maint_steps()"
    )
    return ["select pgque.maint()", *(call for (call,) in found)]


def tables(db: Connection) -> list[str]:
    found = db.rows(
        "select oid::regclass::text from pg_class where relnamespace = 'pgque'::regnamespace"
        " and relkind in ('r', 'p') and relname !~ '^event_.*[12]$' order by 1"
    )
    return [name for (name,) in found]


def loops(db: Connection) -> list[str]:
    """What a scheduler and a person call, beside the steps."""
    return [
        "select pgque.ticker()",
        "select pgque.ticker('q')",
        "call pgque.ticker_loop('0')",
        "call pgque.maint_loop('0')",
        "select pgque.drop_queue('q', true)",
    ]


@pytest.mark.parametrize("calls", [steps, loops])
@pytest.mark.parametrize("hold", ["rows", *MODES])
def test_nothing_waits_for_anybodys_lock_for_long(
    busy: Connection, hold: str, calls: Callable[[Connection], list[str]]
) -> None:
    """Each kind of lock on each table in turn. What is held up fails soon, and says by whom."""
    holder = busy.another()
    hung, unnamed = [], []
    asked = calls(busy)
    for table in tables(busy):
        with holder.transaction(force_rollback=True):
            if hold == "rows":
                holder.execute(f"select from {table} for update".encode())
            else:
                holder.execute(f"lock table only {table} in {hold} mode".encode())
            for call in asked:
                try:
                    if "drop_queue" in call:
                        with busy.transaction(force_rollback=True):
                            busy.execute("set local lock_timeout = '100ms'")
                            busy.execute(call.encode())
                    else:
                        busy.execute(call.encode())
                except psycopg.errors.QueryCanceled:
                    hung.append((table, call))
                except psycopg.errors.LockNotAvailable as error:
                    if str(holder.info.backend_pid) not in str(error):
                        unnamed.append((table, call))
    assert hung == [], hung
    if calls is loops:
        assert unnamed == [], unnamed


def test_a_queue_that_is_being_configured_holds_up_no_other(db: Connection) -> None:
    for name in ("q", "other"):
        db.make_queue(name, rotation_period="1 microsecond")
        db.value("select pgque.maint_rotate_tables_step1(%s)", name)
    with db.another().transaction() as open_transaction:
        open_transaction.connection.execute(
            "select pgque.set_queue_config('q', 'max_retries', '9')"
        )
        assert db.value("select pgque.maint_rotate_tables_step2()") == 1
    assert db.value("select pgque.maint_rotate_tables_step2()") == 1


class TestPreparedTransactions:
    @pytest.fixture
    def prepared(self, db: Connection) -> Iterator[None]:
        """A scheduled event in a transaction that is prepared."""
        db.make_queue()
        producer = db.another()
        producer.execute("begin")
        producer.value("select pgque.send_at('q', 't', 'x'::text, now() + interval '1 day')")
        try:
            producer.execute("prepare transaction 'scheduled'")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            pytest.skip("the server has no prepared transactions")
        yield
        db.execute("rollback")
        db.execute("rollback prepared 'scheduled'")

    @pytest.mark.usefixtures("prepared")
    def test_a_drop_gives_up_and_says_why(self, db: Connection) -> None:
        db.execute("set lock_timeout = '100ms'")
        with refused("55P03", '"q"', "prepared"):
            db.value("select pgque.drop_queue('q', true)")
        assert db.value("show lock_timeout") == "100ms"
        assert db.value("select count(*) from pgque.queue") == 1

    @pytest.mark.usefixtures("prepared")
    def test_the_queues_functions_are_made_again_at_once(self, db: Connection) -> None:
        db.execute(f"set statement_timeout = '{PATIENCE}'")
        assert db.value("select pgque.upgrade_schema()") == 1


def test_a_drop_waits_a_minute_or_as_long_as_its_transaction_says_and_nothing_after_it_does(
    bare: Connection,
) -> None:
    bare.execute(
        "create table public.seen (timeout text);"
        " create function public.note() returns trigger language plpgsql as $$ begin"
        "   insert into public.seen values (current_setting('lock_timeout')); return old; end $$;"
        " create trigger note before delete on pgque.queue"
        " for each row execute function public.note()"
    )
    bare.execute("set lock_timeout = 0")
    for own in ("0", "7s"):
        with bare.transaction():
            bare.execute(f"set local lock_timeout = '{own}'".encode())
            bare.value("select pgque.drop_queue('q')")
        assert bare.value("show lock_timeout") == "0"
        bare.make_queue(consumers=())
    assert bare.rows("select timeout from public.seen") == [("1min",), ("7s",)]


class TestLogicalReplication:
    """A publication of all tables demands a replica identity of each that is changed in place."""

    # Rows are only inserted, and tables truncated.
    APPEND_ONLY = r"^(event(_template|_group_\d+|_\d+.*)?|(tick|position|counter)_log.*|history)$"

    def test_each_table_that_is_changed_in_place_has_one(self, q: Connection) -> None:
        lacking = (
            "select relname from pg_class c where relnamespace = 'pgque'::regnamespace"
            " and relkind in ('r', 'p') and relname !~ %s and relreplident <> 'f'"
            " and not exists (select from pg_index where indrelid = c.oid and indisprimary)"
        )
        assert q.rows(lacking, self.APPEND_ONLY) == []

    def test_everything_works_beside_it(self, db: Connection) -> None:
        db.execute("create publication everything for all tables")
        db.make_queue(rotation_period="1 microsecond", max_retries="0")
        be_used(db)
        for call in steps(db):
            db.execute(call.encode())
        assert db.value("select pgque.maint_compact_ticks()") >= 0
        assert db.value("select pgque.dlq_replay_all('q')")[0] == "3"
        db.execute(INSTALL_SQL.read_bytes())
        db.value("select pgque.drop_queue('q', true)")

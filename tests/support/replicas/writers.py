"""Tables of several kinds, and writers that change them in transactions of every kind at once."""

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import psycopg
from psycopg import errors as pg

KEYS = {
    "public.accounts": ("id",),
    "public.entries": ("account", "nr"),
    "public.places": ("id", "region"),
}
TABLES = tuple(KEYS)
# Those that keep their names.
COLUMNS = {
    "public.accounts": ("id", "balance", "note"),
    "public.entries": ("account", "nr", "amount"),
    "public.places": ("id", "region", "seen"),
}
SCHEMA = """
create table accounts (
    id int primary key deferrable, balance bigint not null, note text) with (fillfactor = 10);
create table entries (
    account int, nr text, amount numeric(12, 2), primary key (account, nr)) with (fillfactor = 10);
create table places (
    id int, region int, seen timestamptz, primary key (id, region)) partition by list (region);
create table places_0 partition of places for values in (0) with (fillfactor = 10);
create table places_1 partition of places for values in (1) with (fillfactor = 10);
create function book() returns trigger language plpgsql as $$
begin
    update accounts set note = format('booked with %s', new.id) where id in (new.id, new.id + 1);
    insert into entries values (new.id, 'last', new.balance)
    on conflict (account, nr) do update set amount = excluded.amount;
    return null;
end $$;
create trigger book after insert or update on accounts for each row
when (pg_trigger_depth() = 0) execute function book();
insert into accounts select n, n, null from generate_series(1, 60) n;
insert into entries select n, 'first', n from generate_series(1, 60) n;
insert into places select n, n % 2, '2026-01-01' from generate_series(1, 60) n;
"""
# The writers' sessions are told from others by this name.
APPLICATION = "writer"
_SETTINGS = "set lock_timeout = '300ms'; set deadlock_timeout = '30ms'"
_STATEMENTS = (
    "update accounts set balance = balance + {value} where id between {low} and {high}",
    "insert into accounts select n, {value}, e'n\\t\"' from generate_series({low}, {high}) n"
    " where not exists (select from accounts a where a.id = n)",
    "delete from accounts where id between {low} and {high}",
    "update accounts set id = id + 1000 where id between {low} and {high}",
    "update accounts set id = id - 1000 where id between 1000 + {low} and 1000 + {high}",
    "update accounts set id = case id when {low} then {high} else {low} end"
    " where id in ({low}, {high})",
    "with gone as (delete from accounts where id between {low} and {high} returning *)"
    " insert into entries select id, 'moved', balance from gone"
    " on conflict (account, nr) do update set amount = -1",
    "merge into accounts a using (select generate_series({low}, {high}) as id) n on a.id = n.id"
    " when matched and n.id % 2 = 0 then delete"
    " when matched then update set balance = {value}"
    " when not matched then insert values (n.id, {value}, null)",
    "insert into entries select n, 'again', {value} / 4.0 from generate_series({low}, {high}) n"
    " on conflict (account, nr) do update set amount = entries.amount + excluded.amount",
    "update entries set nr = 'other ' || nr where account between {low} and {high}",
    "delete from entries where account between {low} and {high} and nr <> 'last'",
    "update places set region = 1 - region where region in (0, 1) and id between {low} and {high}",
    "update places set seen = now() where id between {low} and {high}",
    "insert into places select n, {value} % 2, null from generate_series({low}, {high}) n"
    " on conflict (id, region) do update set seen = '2026-02-02 01:02:03.000004+01'",
    "delete from places where id between {low} and {high}",
)
_TRUNCATES = (
    "truncate accounts",
    "truncate places_1",
    "truncate entries, accounts",
    "truncate places",
)
_EXPECTED = (
    pg.IntegrityError,
    pg.CardinalityViolation,
    pg.UndefinedColumn,
    pg.DeadlockDetected,
    pg.LockNotAvailable,
)


class Writers:
    """Eight writers, one of which has long transactions.

    Args:
        url: the database with the tables.
        seed: what the writers do follows from it, but not in which order they come.
    """

    count = 8

    def __init__(self, url: str, seed: str) -> None:
        self._url, self._seed = url, seed
        self._stop = threading.Event()
        # Each writer has its own while it may commit.
        self._gates = [threading.Lock() for _ in range(self.count)]
        # How many transactions each may still make.
        self._budgets = [threading.Semaphore(0) for _ in range(self.count)]

    def grant(self, transactions: int) -> None:
        """Lets each of them make so many more transactions.

        So there is as much to replicate on a slow machine as on a quick one.
        """
        for budget in self._budgets:
            budget.release(transactions)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Has them write during the block."""
        with ThreadPoolExecutor(self.count) as pool:
            writing = [pool.submit(self._keep_writing, number) for number in range(self.count)]
            try:
                yield
            finally:
                self._stop.set()
            for each in writing:
                each.result()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets none of them commit during the block; long transactions stay open."""
        with ExitStack() as stack:
            for gate in self._gates:
                stack.enter_context(gate)
            yield

    def _keep_writing(self, number: int) -> None:
        chance = random.Random(f"{self._seed}/{number}")
        write = self._write_long if number == 0 else self._write
        while not self._stop.is_set():
            # A session may be terminated.
            with (
                suppress(psycopg.OperationalError),
                psycopg.connect(self._url, autocommit=True, application_name=APPLICATION) as db,
            ):
                db.execute(_SETTINGS)
                while not self._stop.is_set():
                    if self._budgets[number].acquire(timeout=0.1):
                        write(db, chance, self._gates[number])
                        self._stop.wait(chance.random() / 3)

    def _write(self, db: psycopg.Connection, chance: random.Random, gate: threading.Lock) -> None:
        with gate, suppress(*_EXPECTED), db.transaction(force_rollback=chance.random() < 0.15):
            if chance.random() < 0.01:
                db.execute(chance.choice(_TRUNCATES).encode())
            _change(db, chance, chance.randrange(1, 60))

    def _write_long(
        self, db: psycopg.Connection, chance: random.Random, gate: threading.Lock
    ) -> None:
        db.execute("begin")
        # In rows of its own, so that the others need not wait.
        _change(db, chance, 200)
        self._stop.wait(chance.choice((0.1, 1, 3)))
        _change(db, chance, 300)
        with gate:
            db.execute(b"rollback" if chance.random() < 0.2 else b"commit")


def _change(db: psycopg.Connection, chance: random.Random, low: int) -> None:
    """Changes rows by some statements, each in a savepoint."""
    for _ in range(chance.randint(1, 4)):
        statement = chance.choice(_STATEMENTS).format(
            low=low, high=low + chance.choice((1, 2, 10)), value=chance.randrange(1000)
        )
        with suppress(*_EXPECTED), db.transaction(force_rollback=chance.random() < 0.2):
            db.execute(statement.encode())


# For two of the columns that were added, in any order.
_OF_ADDED = """do $$ declare v text[]; begin
    v := array(select attname from pg_attribute
               where attrelid = 'accounts'::regclass and attname ~ '^[cn]\\d' and not attisdropped
               order by random() limit 2);
    if cardinality(v) = 2 then execute format('{}', variadic v); end if; end $$"""
_ADDED = (
    "alter table accounts drop %1$I",
    "alter table accounts rename %1$I to n{number}",
    "alter table accounts rename %1$I to n{number}; alter table accounts drop %2$I",
    "alter table accounts rename %1$I to x; alter table accounts rename %2$I to %1$I;"
    " update accounts set %1$I = 1 where id %% 7 = 1; alter table accounts rename x to %2$I",
    "alter table accounts drop %1$I; alter table accounts add %1$I int default {number}",
    "alter table accounts drop %1$I; alter table accounts rename %2$I to %1$I",
)
# For a partition that another call has made. `places_1` goes only for the length of a transaction.
_OF_PARTS = """do $$ declare v regclass := (
    select inhrelid from pg_inherits where inhparent = 'places'::regclass
        and inhrelid::regclass::text !~ '_[01]$' order by random() limit 1); begin
    if v is not null then execute format('{}', v); end if; end $$"""
_PARTS = (
    "drop table %1$s",
    "truncate %1$s",
    "alter table places detach partition %1$s; insert into %1$s values (1, 0, null)",
    "update %1$s set seen = now(); alter table places detach partition %1$s; drop table %1$s",
)


def altering(chance: random.Random, number: int) -> list[str]:
    """Returns statements, to run one by one, that alter a table or replace its rows.

    Args:
        chance: chooses.
        number: no other call had it.
    """
    choices: tuple[Callable[[], list[str]], ...] = (
        lambda: [f"alter table accounts add column c{number} int default {number}"],
        lambda: [
            "alter table accounts drop column if exists gone",
            "alter table accounts add column gone int",
            "update accounts set gone = id",
            "alter table accounts drop column gone",
        ],
        lambda: [
            f"alter table accounts add column n{number} int",
            f"update accounts set n{number} = id where id % 7 = 0",
        ],
        lambda: [_OF_ADDED.format(chance.choice(_ADDED).format(number=number))],
        lambda: [_OF_ADDED.format(chance.choice(_ADDED).format(number=number))],
        lambda: [f"alter table accounts alter note type {chance.choice(('text', 'varchar'))}"],
        lambda: ["alter table accounts alter balance set statistics 7, alter note set default ''"],
        lambda: [f"alter table entries alter amount type numeric({12 + number % 20}, 2)"],
        lambda: ["truncate entries"],
        lambda: [f"vacuum full {chance.choice(('entries', 'accounts', 'places_0', 'places'))}"],
        lambda: ["alter table places rename seen to at", "alter table places rename at to seen"],
        lambda: [
            f"create table places_{number} partition of places for values in ({number})",
            f"insert into places select n, {number} from generate_series(1, 5) n",
            f"update places set id = id + 1 where region = {number} and id = 5",
        ],
        lambda: [
            f"create table places_{number} (like places)",
            f"insert into places_{number} select n, {number}, null from generate_series(1, 9) n",
            f"alter table places attach partition places_{number} for values in ({number})",
            f"delete from places_{number} where id = 3",
        ],
        lambda: [f"create table places_{number} partition of places for values in ({number})"],
        lambda: [_OF_PARTS.format(chance.choice(_PARTS))],
        lambda: [_OF_PARTS.format(chance.choice(_PARTS))],
        lambda: [
            "begin; alter table places detach partition places_1; delete from places_1"
            f" where id % 5 = 1; insert into places_1 values ({number}, 1, null) on conflict"
            " do nothing; alter table places attach partition places_1 for values in (1); commit"
        ],
        lambda: ["update accounts set balance = balance - 1 where id % 3 = 0"],
    )
    return chance.choice(choices)()

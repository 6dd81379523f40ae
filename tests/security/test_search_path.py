"""No function, operator, type or table of others stands in for ours, whatever the path says."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.conftest import NewDatabase
from tests.support.queues.catalog import populate, public_functions, sample_values
from tests.support.queues.sql import Connection, connect
from tests.support.queues.traps import SPRUNG, is_sprung, set_temporary_traps, set_traps

# An admin is a reader and a writer, too.
ROLES_AND_PATHS = pytest.mark.parametrize(
    ("role", "path"),
    [
        ("postgres", "evil, pg_catalog, public"),
        ("pgque_admin", "evil, pg_catalog, public"),
        ("postgres", "pg_catalog, evil, public"),
        ("postgres", '"$user", public, evil'),
    ],
    ids=["before the catalog", "of an admin", "after the catalog", "as usual"],
)
TRIGGERS = {
    "jsontriga": "'q', 'backup'",
    "logutriga": "'q', 'backup', 'ignore=note'",
    "sqltriga": "'q', 'pkey=id', 'ev_extra4=name', 'when=true'",
}


@pytest.fixture(scope="module")
def trapped_url(new_database: NewDatabase) -> Iterator[str]:
    """A database where an attacker was busy."""
    with new_database() as url, connect(url) as db:
        populate(db)
        db.execute("create table public.watched (id bigint primary key, name text, note text)")
        db.execute("insert into public.watched values (1, 'a', 'b')")
        db.execute("grant all on public.watched to public")
        for function, arguments in TRIGGERS.items():
            db.execute(
                f"create trigger t_{function} after insert or update or delete on public.watched"
                f" for each row execute function pgque.{function}({arguments})".encode()
            )
        assert set_traps(db) > 500
        yield url


@pytest.fixture(scope="module")
def clean(trapped_url: str) -> Iterator[Connection]:
    with connect(trapped_url) as db:
        yield db


@pytest.fixture
def victim(trapped_url: str) -> Iterator[Connection]:
    """A session with temporary traps too."""
    with connect(trapped_url) as db:
        set_temporary_traps(db)
        yield db


@ROLES_AND_PATHS
def test_no_function_uses_what_is_not_ours(
    clean: Connection, victim: Connection, role: str, path: str
) -> None:
    victim.execute(f"set search_path = {path}".encode())
    hijacked = []
    for function in public_functions(clean):
        values = sample_values(clean, function)
        try:
            with victim.transaction(force_rollback=True):
                victim.execute(f"set local role {role}".encode())
                function.call(victim, values)
        except psycopg.Error as error:
            if error.sqlstate == SPRUNG:
                hijacked.append(f"{function.signature}: {error}")
        if is_sprung(clean):
            hijacked.append(function.signature)
    assert hijacked == []


@ROLES_AND_PATHS
def test_no_trigger_uses_what_is_not_ours(
    clean: Connection, victim: Connection, role: str, path: str
) -> None:
    victim.execute(f"set search_path = {path}".encode())
    with victim.transaction(force_rollback=True):
        victim.execute(f"set local role {role}".encode())
        victim.execute("insert into public.watched values (2, 'x', 'y')")
        victim.execute("update public.watched set name = 'new'")
        victim.execute("delete from public.watched")
    assert not is_sprung(clean)


def test_the_ticker_loop_uses_nothing_that_is_not_ours(
    clean: Connection, victim: Connection
) -> None:
    clean.execute("update pgque.config set ticker_slot = '250 ms'")
    victim.execute("set search_path = evil, pg_catalog")
    victim.execute("call pgque.ticker_loop()")
    assert not is_sprung(clean)


def test_a_careless_function_would_be_found(clean: Connection, victim: Connection) -> None:
    """Each kind of trap springs on a function that pins no path."""
    victim.execute("set search_path = evil, pg_catalog")
    for careless in (
        "pg_catalog.now() is null or now() is null",
        "1::pg_catalog.int8 > 2::pg_catalog.int8",
        "'a'::pg_catalog.text = 'b'::pg_catalog.text",
        "'a'::text is null",
        "exists (select from queue)",
        "exists (select from pg_attribute)",
        "format('%s', 'x'::pg_catalog.text) is null",
    ):
        with pytest.raises(psycopg.Error) as caught, victim.transaction(force_rollback=True):
            victim.execute(
                "create function pgque.careless() returns pg_catalog.bool language plpgsql as"
                f" $$ begin return {careless}; end $$".encode()
            )
            victim.execute("select pgque.careless()")
        assert (caught.value.sqlstate, is_sprung(clean)) == (SPRUNG, True), careless


def test_a_cast_of_the_callers_own_type_runs_with_the_callers_rights(
    clean: Connection, victim: Connection
) -> None:
    with victim.transaction(force_rollback=True):
        victim.execute("create table public.seen (who pg_catalog.text)")
        victim.execute("grant all on public.seen to public")
        victim.execute("create type public.mood as enum ('sad')")
        victim.execute(
            "create function public.mood_text(public.mood) returns pg_catalog.text"
            " language plpgsql as $$ begin insert into public.seen values (current_user);"
            " return 'sad'; end $$"
        )
        victim.execute(
            "create cast (public.mood as pg_catalog.text) with function public.mood_text"
            " as implicit"
        )
        victim.execute("set local role pgque_writer")
        victim.value("select pgque.send('q', 't', 'sad'::public.mood)")
        assert victim.rows("select who from public.seen") == [("pgque_writer",)]

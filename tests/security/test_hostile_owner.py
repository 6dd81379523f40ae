"""No role gains the rights of who installs, upgrades or removes: promise 12 of the design."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from pgque_dagster import installer
from pgque_dagster.client.errors import PermissionDenied
from tests.conftest import INSTALL_SQL
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.databases import Owned, empty_database, owned_database

SQL = {path.stem: path.read_text() for path in sorted(INSTALL_SQL.parent.glob("pgque*.sql"))}
ADDONS = [name for name in SQL if name not in ("pgque", "pgque_uninstall")]

# What runs in a session of another role tries to become that role again, and then to rise.
RISE = """
create function {schema}.rise() returns trigger language plpgsql as $$
begin
    perform set_config('role', 'none', true);
    reset session authorization;
    execute format('alter role %I superuser', '{role}');
    return new;
exception when others then
    perform set_config('role', 'none', true);
    execute format('alter role %I superuser', '{role}');
    return new;
end;
$$;
"""
TRIGGER = "create trigger rise before insert or update on {0} for each row execute function {1}()"


@pytest.fixture(scope="module")
def roles(server: Any) -> None:
    """The roles of the queue and its add-ons, which only a superuser may complete."""
    with empty_database(server) as url, connect(url) as db:
        for name in ("pgque", *ADDONS):
            db.execute(SQL[name].encode())


@pytest.fixture
def owned(server: Any, roles: None) -> Iterator[Owned]:
    with owned_database(server, "createrole") as database:
        yield database


@pytest.fixture
def owner(owned: Owned) -> Iterator[Connection]:
    """The attacker: owns the database, and is no superuser."""
    with connect(owned.owner_url) as db:
        yield db


@pytest.fixture
def superuser(owned: Owned) -> Iterator[Connection]:
    with connect(owned.superuser_url) as db:
        yield db


def has_risen(superuser: Connection, owned: Owned) -> bool:
    superuser.execute("rollback")
    superuser.execute("reset session authorization; reset role")
    return bool(superuser.value("select rolsuper from pg_roles where rolname = %s", owned.owner))


def set_trap(owner: Connection, owned: Owned, table: str = "pgque.config") -> None:
    owner.execute(RISE.format(schema="pgque", role=owned.owner).encode())
    owner.execute(TRIGGER.format(table, "pgque.rise").encode())


@pytest.mark.parametrize("name", SQL)
def test_a_superusers_session_runs_nothing_of_the_owner(
    owner: Connection, superuser: Connection, owned: Owned, name: str
) -> None:
    owner.execute(SQL["pgque"].encode())
    if name in ADDONS:
        owner.execute(SQL[name].encode())
    set_trap(owner, owned)
    owner.execute(
        "create trigger rise2 before insert or update on pgque.addon"
        " for each row execute function pgque.rise()"
    )
    for way in ("select", "set role %s", "set session authorization %s"):
        superuser.execute(way.replace("%s", owned.owner).encode())
        with refused("42501", owned.owner, "superuser"):
            superuser.execute(SQL[name].encode())
        assert not has_risen(superuser, owned)


@pytest.mark.parametrize(
    "trap",
    [
        "create table pgque.version_history (version text, installed_at timestamptz default now());"
        + TRIGGER.format("pgque.version_history", "pgque.rise"),
        "create function pgque.risen() returns text language plpgsql as $$ begin"
        " perform set_config('role', 'none', true);"
        " execute format('alter role %I superuser', '{role}'); return '0.3.0'; end; $$;"
        "create view pgque.config as select pgque.risen() schema_version, true singleton",
        "create table pgque.config (schema_version text, singleton boolean);"
        "create rule r as on insert to pgque.config do also select pgque.rise()",
    ],
    ids=["trigger", "view", "rule"],
)
def test_a_schema_that_another_role_made_before_is_refused(
    owner: Connection, superuser: Connection, owned: Owned, trap: str
) -> None:
    owner.execute("create schema pgque")
    owner.execute(RISE.format(schema="pgque", role=owned.owner).encode())
    with suppress(psycopg.Error):  # some servers refuse the rule already
        owner.execute(trap.replace("{role}", owned.owner).encode())
    for script in SQL.values():
        with refused("42501", owned.owner):
            superuser.execute(script.encode())
        assert not has_risen(superuser, owned)


def test_a_schema_of_an_addon_that_was_there_before_is_refused(
    owner: Connection, superuser: Connection
) -> None:
    superuser.execute(SQL["pgque"].encode())
    for name in ADDONS:
        schema = {"pgque_pgq": "pgq_coop"}.get(name, name.removeprefix("pgque_"))
        owner.execute(f"create schema {schema}".encode())
        with refused("42P06", schema):
            superuser.execute(SQL[name].encode())
        superuser.execute("rollback")


def test_what_another_role_put_into_the_schema_is_refused_and_named(
    owner: Connection, superuser: Connection, owned: Owned
) -> None:
    """A right to create objects, or triggers, in the schema of a superuser is none to rise."""
    superuser.execute(SQL["pgque"].encode())
    for right in ("create, usage on schema pgque", "trigger on pgque.config"):
        superuser.execute(f"grant {right} to {owned.owner}".encode())
    set_trap(owner, owned)
    for script in SQL.values():
        with refused("42501", "pgque.rise", "trigger rise"):
            superuser.execute(script.encode())
        assert not has_risen(superuser, owned)


def test_the_installer_calls_no_function_of_the_owner_as_a_superuser(
    owner: Connection, superuser: Connection, owned: Owned
) -> None:
    installer.install(owned.owner_url)
    owner.execute(
        "create or replace function pgque.version() returns text language plpgsql as $$ begin"
        f" alter role {owned.owner} superuser; return '0.0.1'; end; $$".encode()
    )
    for call in (installer.install, installer.upgrade, installer.uninstall):
        with pytest.raises(PermissionDenied, match=f"belongs to {owned.owner}.*superuser"):
            call(owned.superuser_url)
    assert not has_risen(superuser, owned)


def test_a_member_that_is_no_superuser_upgrades(
    owner: Connection, superuser: Connection, owned: Owned
) -> None:
    owner.execute(SQL["pgque"].encode())
    superuser.execute("create role operator_of_queues login password 'x'")
    superuser.execute(f"grant {owned.owner} to operator_of_queues".encode())
    try:
        url = owned.owner_url.replace(f"//{owned.owner}@", "//operator_of_queues@")
        with connect(url) as member:
            member.execute(SQL["pgque"].encode())
        assert owner.rows(
            "select distinct relowner::regrole::text from pg_class where"
            " relnamespace = 'pgque'::regnamespace"
        ) == [(owned.owner,)]
    finally:
        superuser.execute("drop role operator_of_queues")

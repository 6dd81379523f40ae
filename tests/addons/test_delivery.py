"""Add-ons are installed after the queue, again without loss, and removed by a function."""

import re
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from pgque_dagster import PgqueResource, installer
from pgque_dagster.cli import main
from pgque_dagster.client import (
    AddonMissing,
    InvalidArgument,
    OlderInstalled,
    PermissionDenied,
    SchemaMissing,
)
from tests.addons.conftest import addon_sql
from tests.conftest import INSTALL_SQL, new_server
from tests.support.queues.sql import connect
from tests.support.servers.databases import as_user, owned_database

each_addon = pytest.mark.parametrize("addon", installer.ADDONS)


def pgque(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, arguments, input="", env={"PGQUE_URL": url})


def schemas(url: str) -> set[str]:
    with connect(url) as db:
        return {name for (name,) in db.rows("select nspname from pg_namespace")}


@each_addon
def test_it_needs_the_queue_in_its_version_and_a_free_name(url: str, addon: str) -> None:
    def is_refused(text: str) -> psycopg.Error:
        with connect(url) as db, pytest.raises(psycopg.Error, match=text) as error:
            db.execute(addon_sql(addon))
        return error.value

    error = is_refused("needs pgque")
    assert error.sqlstate == "PQ011"
    assert "pgque.sql" in str(error.diag.message_hint)
    assert schemas(url).isdisjoint({addon, "pgque"})
    installer.install(url)
    with connect(url) as db:
        db.execute(f"create schema {addon} create table kept ()".encode())
        error = is_refused(f"schema {addon} already")
        assert error.sqlstate == "42P06"
        assert db.value("select to_regclass(%s)", f"{addon}.kept") is not None
        db.execute(f"drop schema {addon} cascade".encode())
        db.execute("alter table pgque.config disable trigger all")
        db.execute("update pgque.config set schema_version = '0.0.1'")
    is_refused(r"this database has pgque 0\.0\.1")
    assert addon not in schemas(url)


def test_an_owner_without_superuser_installs_all() -> None:
    """In a new cluster, so that the owner creates the roles, too, or is told who creates them."""
    with new_server() as server:
        with owned_database(server, "nocreaterole") as database:
            for script in (INSTALL_SQL.read_bytes(), *map(addon_sql, installer.ADDONS)):
                with connect(database.owner_url) as db, connect(server.url) as admin:
                    try:
                        db.execute(script)
                        continue
                    except psycopg.errors.InsufficientPrivilege as error:
                        hint = error.diag.message_hint or ""
                    db.execute("rollback")
                    for command in re.findall(r"(?:create|grant) [^;]*;", hint):
                        admin.execute(command.encode())
                    db.execute(script)
            assert set(installer.installed_addons(database.owner_url)) == set(installer.ADDONS)
            with connect(database.superuser_url) as db:
                owners = db.rows(
                    "select distinct p.proowner::regrole::text from pg_proc p where"
                    " p.pronamespace::regnamespace::text ~ '^(pgque|pgq|postgremq|qgres)'"
                )
            assert owners == [(database.owner,)]
            installer.uninstall(database.owner_url)
            assert schemas(database.superuser_url).isdisjoint({"pgque", *installer.ADDONS})
        with connect(server.url) as admin:
            admin.execute("drop role pgq_admin")
        with owned_database(server, "nocreaterole") as database:
            installer.install(database.owner_url)
            with pytest.raises(
                PermissionDenied, match="pgq_admin is missing or incomplete"
            ) as told:
                installer.install(database.owner_url, ["pgq"])
            assert re.search(r"run once: create role .*; then install again", str(told.value))
    with new_server() as server, owned_database(server) as database:  # who may create roles
        installer.install(database.owner_url, installer.ADDONS)
        assert set(installer.installed_addons(database.owner_url)) == set(installer.ADDONS)


@each_addon
def test_a_role_that_does_not_own_the_queue_is_refused(server: Any, addon: str) -> None:
    with owned_database(server) as database, connect(database.superuser_url) as db:
        installer.install(database.owner_url)
        db.execute("create role intruder login createrole password 'x'")
        try:
            with (
                connect(as_user(database.superuser_url, "intruder")) as stranger,
                pytest.raises(psycopg.errors.InsufficientPrivilege),
            ):
                stranger.execute(addon_sql(addon))
        finally:
            db.execute("drop role intruder")
        assert addon not in schemas(database.superuser_url)


def test_the_command_installs_reinstalls_and_removes_add_ons(url: str) -> None:
    with pytest.raises(InvalidArgument, match="no add-on 'pgmq'"):
        installer.install(url, ["pgmq"])
    assert pgque(url, "install", "--with", "nothing").exit_code == 2
    assert "pgque" not in schemas(url)
    done = pgque(url, "install", *(f"--with={addon}" for addon in installer.ADDONS))
    assert done.exit_code == 0, done.output
    assert "with pgq, postgremq, qgres" in done.output
    with connect(url) as db:
        db.make_queue()
        db.send("a")
        assert pgque(url, "install").exit_code == 0
        assert db.value("select count(*) from pgque.event") == 1
    assert set(installer.installed_addons(url)) == set(installer.ADDONS)
    assert pgque(url, "uninstall", "--addon", "qgres").exit_code == 0
    assert set(installer.installed_addons(url)) == {"pgq", "postgremq"}
    assert "qgres" not in schemas(url)
    missing = pgque(url, "uninstall", "--addon", "qgres")
    assert missing.exit_code != 0
    assert "add-on qgres is not installed" in missing.output
    with pytest.raises(AddonMissing, match=r"not installed.*Installed are: pgq, postgremq"):
        installer.uninstall(url, addon="qgres")
    with connect(url) as db:
        db.value("select pgque.drop_queue('q', true)")
    assert pgque(url, "uninstall").exit_code == 0
    assert schemas(url).isdisjoint({"pgque", *installer.ADDONS})


def test_the_resource_installs_what_is_missing_or_says_so(url: str) -> None:
    installer.install(url)
    with pytest.raises(SchemaMissing, match="lacks the add-on qgres") as error:
        PgqueResource(url=url, install="never", addons=["qgres"]).database_url()
    assert "pgque install --with qgres" in str(error.value.hint)
    assert PgqueResource(url=url, addons=["qgres"]).database_url() == url
    assert set(installer.installed_addons(url)) == {"qgres"}


def test_an_older_add_on_is_upgraded_with_the_queue(url: str) -> None:
    installer.install(url, ["qgres"])
    with connect(url) as db:
        db.execute("update pgque.addon set addon_version = '0.0.1'")
        said: list[str | None] = []
        db.add_notice_handler(lambda notice: said.append(notice.message_primary))
        db.execute(installer.read_sql("pgque.sql").encode())
    assert [text for text in said if text and "install pgque_qgres.sql" in text]
    with pytest.raises(OlderInstalled, match=r"qgres 0\.0\.1"):
        PgqueResource(url=url, install="never").database_url()
    PgqueResource(url=url, install="upgrade").database_url()
    assert installer.installed_addons(url)["qgres"] != "0.0.1"

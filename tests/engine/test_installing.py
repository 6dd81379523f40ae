"""Installing, installing again, uninstalling."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.queues.catalog import populate
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.databases import as_user

SQL = Path(__file__).parents[2] / "sql"
INSTALL = (SQL / "pgque.sql").read_bytes()
UNINSTALL = (SQL / "pgque_uninstall.sql").read_bytes()
ROLES = ("pgque_reader", "pgque_writer", "pgque_admin")


def contents(db: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables of the schema."""
    tables = db.rows(
        "select relname from pg_class where relnamespace = 'pgque'::regnamespace"
        " and relkind = 'r' order by 1"
    )
    return {name: db.rows(f"select * from pgque.{name} t order by t::text") for (name,) in tables}


def objects(db: Connection) -> list[tuple[Any, ...]]:
    return db.rows(
        "select oid::regprocedure::text, prosrc, proacl::text from pg_proc"
        " where pronamespace = 'pgque'::regnamespace"
        " union all select relname, reloptions::text, relacl::text from pg_class"
        " where relnamespace = 'pgque'::regnamespace order by 1, 2"
    )


def use(db: Connection) -> None:
    """One event from end to end."""
    db.make_queue()
    db.publish("a")
    assert db.drain() == ["a"]


def test_installing_again_changes_no_row_no_object_and_no_open_batch(db: Connection) -> None:
    populate(db)
    before = contents(db), objects(db)
    batch = db.next_batch()
    read = db.events(batch)
    db.execute(INSTALL)
    assert (contents(db), objects(db)) == before
    assert (db.next_batch(), db.events(batch)) == (batch, read)


def test_installing_again_repairs_a_queues_functions_and_what_public_was_given(
    q: Connection,
) -> None:
    q.execute(f"drop function pgque.event_{q.queue_id()}_tables(xid8, xid8)".encode())
    q.execute("grant execute on function pgque.maint() to public")
    q.execute(INSTALL)
    use(q)
    assert q.value("select has_function_privilege('public', 'pgque.maint()', 'execute')") is False


def test_a_failed_installation_leaves_nothing(empty_url: str) -> None:
    broken = INSTALL.replace(b"commit;", b"select 1 / 0; commit;")
    with connect(empty_url) as db:
        with refused("22012"):
            db.execute(broken)
        db.execute("rollback")
        assert db.value("select to_regnamespace('pgque')") is None


def test_two_installations_at_once_both_succeed(empty_url: str) -> None:
    def install(_: int) -> str:
        with connect(empty_url) as db:
            db.execute(INSTALL)
            return db.value("select pgque.version()")

    with ThreadPoolExecutor() as pool:
        versions = list(pool.map(install, range(4)))
    assert len(versions) == 4 and len(set(versions)) == 1


def test_objects_of_the_installing_user_do_not_stand_in_for_ours(empty_url: str) -> None:
    with connect(empty_url) as db:
        db.execute(
            "create function public.now() returns timestamptz language sql"
            " as 'select null::timestamptz'"
        )
        db.execute("create schema mine; set search_path = mine, public, pg_catalog")
        db.execute("create table mine.pg_roles (rolname text)")
        db.execute(INSTALL)
        use(db)


def test_uninstalling_leaves_only_the_roles(empty_url: str) -> None:
    catalog = (
        "select 'relation', relname from pg_class where relnamespace >= 16384"
        " union all select 'function', proname from pg_proc where pronamespace >= 16384"
        " union all select 'type', typname from pg_type where typnamespace >= 16384"
        " union all select 'schema', nspname from pg_namespace where oid >= 16384"
        " union all select 'default privilege', oid::text from pg_default_acl"
        " union all select 'cast', oid::text from pg_cast where oid >= 16384"
    )
    with connect(empty_url) as db:
        db.execute(INSTALL)
        populate(db)
        db.value("select pgque.uninstall(true)::text")
        assert db.rows(catalog) == []
        made = db.rows("select rolname, rolcanlogin from pg_roles where rolname ~ '^pgque_'")
        assert sorted(made) == sorted((role, False) for role in ROLES)


def test_the_uninstall_script_removes_queues_that_were_read_and_one_can_install_again(
    empty_url: str,
) -> None:
    schemas = "select array_agg(nspname order by nspname) from pg_namespace"
    with connect(empty_url) as db:
        before = db.value(schemas)
        db.execute(UNINSTALL)  # where nothing is
        for _ in range(2):
            db.execute(INSTALL)
            use(db)
            db.execute(UNINSTALL)
            assert db.value(schemas) == before


def test_psql_installs_and_uninstalls(server: Any, empty_url: str) -> None:
    def psql(file: str) -> None:
        command = [server.binary("psql"), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1"]
        subprocess.run([*command, "--file", SQL / file, empty_url], check=True)

    with connect(empty_url) as db:
        for _ in range(2):
            psql("pgque.sql")
            db.make_queue()
        psql("pgque_uninstall.sql")
        assert db.value("select to_regnamespace('pgque')") is None


def test_who_may_create_a_schema_installs_and_nobody_else(server: Any, empty_url: str) -> None:
    with connect(server.url) as administrator:
        name = empty_url.rpartition("/")[2].partition("?")[0]
        administrator.execute("create role guest login")
        try:
            with connect(as_user(empty_url, "guest")) as db:
                with refused("42501"):
                    db.execute(INSTALL)
                db.execute("rollback")
                administrator.execute(f"grant create on database {name} to guest".encode())
                db.execute(INSTALL)
                use(db)
                db.value("select pgque.uninstall()::text")
        finally:
            administrator.execute(f"revoke create on database {name} from guest".encode())
            administrator.execute("drop role guest")

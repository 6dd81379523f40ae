"""Each role may do its part and no more; nobody reads or changes the tables."""

from collections.abc import Callable

import pytest

from tests.support.logins import as_login
from tests.support.queues import Connection, connect, refused, rows, value
from tests.support.serial import ROLES, add, make_sp, make_sr, publish

MANAGE, INSERT, DELETE = ROLES
CALLS = {
    "queue__create('new', 'SP')": MANAGE,
    "queue__create('new', 'Serial Remover'::qgres.queue_type)": MANAGE,
    "queue__drop('sp', true)": MANAGE,
    "log_queue('sp')": MANAGE,
    "unlog_queue('sp')": MANAGE,
    "queue__create('parts', 'SP', 2)": MANAGE,
    "maint()": MANAGE,
    "\"Publish\"('sp', 'a')": INSERT,
    "\"Publish\"('sp', null, '1', 'a')": INSERT,
    "\"_Publish\"(qgres.queue__get_id('sp'), qgres.queue_entry())": INSERT,
    "add('sr', 'a')": INSERT,
    "_add(qgres.queue__get_id('sr'), qgres.queue_entry())": INSERT,
    "consumer__register('sp', 'new')": DELETE,
    "consumer__drop('sp', 'c')": DELETE,
    "consume('sp', 'c')": DELETE,
    "\"Remove\"('sr')": DELETE,
}


@pytest.fixture
def queues(db: Connection) -> Connection:
    make_sp(db)
    make_sr(db)
    publish(db, "a")
    add(db, "a")
    return db


@pytest.mark.parametrize("call", CALLS)
def test_a_call_needs_its_role(queues: Connection, database_url: str, call: str) -> None:
    admins = ["pgque_admin"] if CALLS[call] != MANAGE else []
    others = [role for role in (*ROLES, *admins) if role != CALLS[call]]
    with connect(as_login(database_url, *others)) as stranger, refused("42501"):
        rows(stranger, f"select qgres.{call}")
    with connect(as_login(database_url, CALLS[call])) as member:
        assert rows(member, f"select qgres.{call}")


@pytest.mark.parametrize("call", [call for call, role in CALLS.items() if role == MANAGE])
def test_an_admin_of_the_queue_manages_serial_queues(
    queues: Connection, database_url: str, call: str
) -> None:
    with connect(as_login(database_url, "pgque_admin")) as admin:
        assert rows(admin, f"select qgres.{call}")


def test_anybody_may_look_queues_up(queues: Connection, database_url: str) -> None:
    with connect(as_login(database_url)) as stranger:
        assert value(stranger, "select count(*) from qgres.queue") == 2
        assert value(stranger, "select qgres.queue__get_id('SP') > 0")
        assert value(stranger, "select qgres._queue_type__sanitize('sp')::text")
        assert value(stranger, "select (qgres.queue_entry(text := 'a')).text") == "a"


def test_nobody_reads_or_writes_the_tables(queues: Connection, database_url: str) -> None:
    relations = rows(
        queues,
        "select oid::regclass::text from pg_class where relnamespace = 'qgres'::regnamespace"
        " and relkind = 'r'",
    )
    with connect(as_login(database_url, *ROLES)) as member:
        for (relation,) in relations:
            for statement in ("select * from", "delete from", "truncate"):
                with refused("42501", "permission denied"):
                    member.execute(f"{statement} {relation}".encode())


def test_internal_functions_are_closed(
    queues: Connection, database_url: str, another: Callable[[], Connection]
) -> None:
    functions = ("_floor(q)", "_adopt(q.queue_id)", "_rotate(q.queue_id, true)", "_empty_half(q)")
    for function in functions:
        with connect(as_login(database_url, *ROLES)) as member, refused("42501"):
            rows(member, f"select qgres.{function} from qgres._queue q")
    with connect(as_login(database_url, *ROLES)) as member, refused("42501", "uninstall"):
        rows(member, "select qgres.uninstall(true)")


def test_objects_in_the_callers_schema_are_not_used(queues: Connection, database_url: str) -> None:
    """A function of the caller under a name that ours call must not run with our rights."""
    with connect(as_login(database_url, *ROLES)) as member:
        member.execute("set search_path = pg_temp, qgres, public")
        member.execute(
            "create function pg_temp.format(text, variadic anyarray) returns text"
            " language plpgsql as $$ begin raise exception 'stolen'; end; $$"
        )
        member.execute("create temp table _queue (queue_id int)")
        assert value(member, "select \"Publish\"('sp', 'b')") == 2
        assert value(member, "select count(*) from consume('sp', 'c')") == 2

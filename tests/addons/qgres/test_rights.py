"""Each role may do its part and no more; nobody reads or changes the tables."""

import pytest

from tests.support.addons.serial import ROLES, add, make_sp, make_sr, publish
from tests.support.queues.sql import Connection, connect, refused
from tests.support.servers.logins import as_login

MANAGE, INSERT, DELETE = ROLES
PUBLIC = "public"
READER = "pgque_reader"
FORMS = [
    f"{queue},{parts}"
    for queue in ("integer", "text")
    for parts in ("bytea,jsonb,text", "bytea", "jsonb", "text")
]
# signature: volatility, strict, security definer, who may call it
FUNCTIONS = {
    "queue_entry(bytea,jsonb,text)": ("i", False, False, PUBLIC),
    "_queue_type__sanitize(text)": ("s", True, False, PUBLIC),
    "queue__create(text,queue_type)": ("v", False, True, MANAGE),
    "queue__create(text,text)": ("v", False, False, PUBLIC),
    "queue__get(text)": ("s", False, False, PUBLIC),
    "queue__get(integer)": ("s", False, False, PUBLIC),
    "queue__get_id(text)": ("s", False, False, PUBLIC),
    "list_queues()": ("s", False, False, READER),
    "consumer__register(text,text)": ("v", False, True, DELETE),
    "consumer__drop(text,text)": ("v", False, True, DELETE),
    '"_Publish"(integer,queue_entry)': ("v", False, True, INSERT),
    **{f'"Publish"({form})': ("v", False, False, PUBLIC) for form in FORMS},
    "consume(integer,text,integer)": ("v", False, True, DELETE),
    "consume(text,text,integer)": ("v", False, False, DELETE),
    "_add(integer,queue_entry)": ("v", False, True, INSERT),
    **{f"add({form})": ("v", False, False, PUBLIC) for form in FORMS},
    '"Remove"(integer,integer)': ("v", False, True, DELETE),
    '"Remove"(text,integer)': ("v", False, False, DELETE),
    "queue__drop(integer,boolean)": ("v", False, True, MANAGE),
    "queue__drop(text,boolean)": ("v", False, False, PUBLIC),
    "log_queue(text)": ("v", False, True, MANAGE),
    "unlog_queue(text)": ("v", False, True, MANAGE),
    "logged_as(text)": ("s", False, True, READER),
    "maint()": ("v", False, True, MANAGE),
}
CALLS = {
    "queue__create('new', 'SP')": MANAGE,
    "queue__create('new', 'Serial Remover'::qgres.queue_type)": MANAGE,
    "queue__drop('sp', true)": MANAGE,
    "log_queue('sp')": MANAGE,
    "unlog_queue('sp')": MANAGE,
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
    "uninstall(true)": None,
    **{
        f"{function} from qgres._queue q": None
        for function in (
            *("_floor(q)", "_adopt(q.queue_id)", "_rotate(q.queue_id, true)", "_empty_half(q)"),
        )
    },
}


@pytest.fixture
def queues(db: Connection) -> Connection:
    make_sp(db)
    make_sr(db)
    publish(db, "a")
    add(db, "a")
    return db


def test_functions_have_the_attributes_and_grants_that_callers_expect(queues: Connection) -> None:
    queues.execute("set search_path = qgres, pg_catalog")
    found = queues.rows(
        "select oid::regprocedure::text, provolatile::text, proisstrict, prosecdef, coalesce(("
        "  select array_agg(distinct case grantee when 0 then 'public'"
        "                            else grantee::regrole::text end)"
        "  from aclexplode(proacl) where grantee <> proowner), '{}')"
        " from pg_proc where pronamespace = 'qgres'::regnamespace"
    )
    expected = {
        signature: (*attributes, {role, "pgque_admin"} if role in (MANAGE, READER) else {role})
        for signature, (*attributes, role) in FUNCTIONS.items()
    }
    granted = {name: (*attributes, set(roles)) for name, *attributes, roles in found if roles}
    assert granted == expected
    relations = queues.rows(
        "select relname::text, privilege_type from pg_class cross join aclexplode(relacl)"
        " where relnamespace = 'qgres'::regnamespace and grantee <> relowner"
    )
    assert relations == [("queue", "SELECT")]


def test_results_have_the_documented_columns(db: Connection) -> None:
    columns = db.rows(
        "select attname::text, atttypid::regtype::text from pg_attribute"
        " where attrelid = 'qgres.queue'::regclass and attnum > 0 order by attnum"
    )
    names, types = zip(*columns, strict=True)
    assert names == ("queue_id", "queue_name", "queue_type")
    assert types == ("integer", "text", "qgres.queue_type")
    sql = (
        "select distinct proargnames[array_length(proargnames, 1) - 2:] from pg_proc"
        " where pronamespace = 'qgres'::regnamespace and proname in ('consume', 'Remove')"
    )
    assert db.rows(sql) == [(["bytea", "jsonb", "text"],)]
    first = (
        "select proargnames[4] from pg_proc where oid = 'qgres.consume(int,text,int)'::regprocedure"
    )
    assert db.value(first) == "sequence_number"


@pytest.mark.parametrize("role", [*ROLES, "pgque_admin"])
def test_a_role_does_its_part_and_no_more(queues: Connection, database_url: str, role: str) -> None:
    part = MANAGE if role == "pgque_admin" else role
    with connect(as_login(database_url, role)) as member:
        for call, needed in CALLS.items():
            with member.transaction(force_rollback=True):
                if needed == part:
                    assert member.rows(f"select qgres.{call}"), call
                    continue
                with refused("42501"):
                    member.rows(f"select qgres.{call}")


def test_objects_in_the_callers_schema_are_not_used(queues: Connection, database_url: str) -> None:
    """A function of the caller under a name that ours call must not run with our rights."""
    with connect(as_login(database_url, *ROLES)) as member:
        member.execute("set search_path = pg_temp, qgres, public")
        member.execute(
            "create function pg_temp.format(text, variadic anyarray) returns text"
            " language plpgsql as $$ begin raise exception 'stolen'; end; $$"
        )
        member.execute("create temp table _queue (queue_id int)")
        assert member.value("select \"Publish\"('sp', 'b')") == 2
        assert member.value("select count(*) from consume('sp', 'c')") == 2

"""Functions have the attributes that clients of Qgres, and its own tests, expect."""

import pytest

from tests.support.queues import Connection, rows, value
from tests.support.serial import ROLES

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
    "queue__create(text,qgres.queue_type)": ("v", False, True, MANAGE),
    "queue__create(text,text)": ("v", False, False, PUBLIC),
    "queue__get(text)": ("s", False, False, PUBLIC),
    "queue__get(integer)": ("s", False, False, PUBLIC),
    "queue__get_id(text)": ("s", False, False, PUBLIC),
    "consumer__register(text,text)": ("v", False, True, DELETE),
    "consumer__drop(text,text)": ("v", False, True, DELETE),
    '"_Publish"(integer,qgres.queue_entry)': ("v", False, True, INSERT),
    **{f'"Publish"({form})': ("v", False, False, PUBLIC) for form in FORMS},
    "consume(integer,text,integer)": ("v", False, True, DELETE),
    "consume(text,text,integer)": ("v", False, False, DELETE),
    "_add(integer,qgres.queue_entry)": ("v", False, True, INSERT),
    **{f"add({form})": ("v", False, False, PUBLIC) for form in FORMS},
    '"Remove"(integer,integer)': ("v", False, True, DELETE),
    '"Remove"(text,integer)': ("v", False, False, DELETE),
    "queue__drop(integer,boolean)": ("v", False, True, MANAGE),
    "queue__drop(text,boolean)": ("v", False, False, PUBLIC),
    "log_queue(text)": ("v", False, True, MANAGE),
    "unlog_queue(text)": ("v", False, True, MANAGE),
    "logged_as(text)": ("s", False, True, READER),
    "queue__create(text,text,integer)": ("v", False, True, MANAGE),
    "queue__partition(text,text)": ("s", False, True, PUBLIC),
    '"Publish"(text,text,bytea,jsonb,text)': ("v", False, False, PUBLIC),
    "maint()": ("v", False, True, MANAGE),
}


@pytest.mark.parametrize("signature", FUNCTIONS)
def test_a_function_has_its_attributes(db: Connection, signature: str) -> None:
    found = rows(
        db,
        "select provolatile::text, proisstrict, prosecdef from pg_proc"
        " where oid = %s::regprocedure",
        f"qgres.{signature}",
    )
    assert found == [FUNCTIONS[signature][:3]]


@pytest.mark.parametrize("signature", FUNCTIONS)
def test_a_function_is_granted_to_its_role_and_to_admins(db: Connection, signature: str) -> None:
    granted = rows(
        db,
        "select distinct case grantee when 0 then 'public' else grantee::regrole::text end"
        " from pg_proc p cross join aclexplode(p.proacl)"
        " where p.oid = %s::regprocedure and grantee <> proowner",
        f"qgres.{signature}",
    )
    role = FUNCTIONS[signature][3]
    admins = [("pgque_admin",)] if role in (MANAGE, READER) else []
    assert sorted(granted) == sorted([(role,), *admins])


def test_no_other_function_is_granted(db: Connection) -> None:
    listed = [f"qgres.{signature}" for signature in FUNCTIONS]
    others = rows(
        db,
        "select p.oid::regprocedure::text from pg_proc p cross join aclexplode(p.proacl)"
        " where pronamespace = 'qgres'::regnamespace and grantee <> proowner"
        " and p.oid <> all (%s::regprocedure[]::oid[])",
        listed,
    )
    assert others == []


def test_the_view_is_the_only_relation_that_users_may_read(db: Connection) -> None:
    value(db, "select qgres.queue__create('a', 'SP') + qgres.queue__create('b', 'SR')")
    granted = rows(
        db,
        "select relname::text, privilege_type from pg_class cross join aclexplode(relacl)"
        " where relnamespace = 'qgres'::regnamespace and grantee <> relowner",
    )
    assert granted == [("queue", "SELECT")]


def test_the_view_has_the_documented_columns(db: Connection) -> None:
    columns = rows(
        db,
        "select attname::text, atttypid::regtype::text from pg_attribute"
        " where attrelid = 'qgres.queue'::regclass and attnum > 0 order by attnum",
    )
    assert columns == [
        ("queue_id", "integer"),
        ("queue_name", "text"),
        ("queue_type", "qgres.queue_type"),
    ]


@pytest.mark.parametrize(
    ("function", "columns"),
    [
        ("consume", ["sequence_number", "bytea", "jsonb", "text"]),
        ("Remove", ["bytea", "jsonb", "text"]),
    ],
)
def test_results_have_the_documented_columns(
    db: Connection, function: str, columns: list[str]
) -> None:
    found = rows(
        db,
        "select proargnames[array_length(proargnames, 1) - %s + 1:] from pg_proc"
        " where pronamespace = 'qgres'::regnamespace and proname = %s",
        len(columns),
        function,
    )
    assert found == [(columns,), (columns,)]

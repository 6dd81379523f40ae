"""Who may do what: readers consume, writers produce, admins run the queue, others do nothing.

The functions and tables are the catalog's, so a new one without a decision fails here.
"""

import re
from typing import Any

import psycopg
import pytest

from tests.security.decisions import DECISIONS, TRIGGERS
from tests.support.queues.catalog import GENERATED, TYPED_VALUES, Function, functions, sample_values
from tests.support.queues.sql import Connection, connect, refused

# The admin is a member of both others.
MAY = {
    "t_reader": {"pgque_reader"},
    "t_writer": {"pgque_writer"},
    "t_admin": {"pgque_reader", "pgque_writer", "pgque_admin"},
    "t_stranger": set(),
}
SEEN_BY_READERS = {
    *("config", "queue", "consumer", "tick", "subscription", "retry_queue", "dead_letter"),
    *("delayed_events", "addon"),
    *("partition_consumer", "partition_slot", "partition_slot_status"),
    *("event_template", "event_N", "event_N_0", "event_N_1", "event_N_2"),
}
READING = ("pgque_reader", "pgque_admin")
# As in PgQ, and the names of add-ons.
SEEN_BY_WRITERS = {"queue", "consumer", "tick", "subscription", "event_template", "addon"}
# Not into the one that rotation empties next, which is event_N_1 while event_N_0 is current.
WRITTEN_BY_WRITERS = {
    f"event_N_{child}.{column}"
    for child in (0, 2)
    for column in ("ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4")
}


def without_number(name: str) -> str:
    return re.sub(r"^event_\d+", "event_N", name)


def test_every_function_is_granted_as_decided(db: Connection) -> None:
    names = {
        without_number(name)
        for (name,) in db.rows(
            "select proname from pg_proc where pronamespace = 'pgque'::regnamespace"
        )
    }
    assert names - DECISIONS.keys() == set(), "decide in tests/security/decisions.py"
    assert DECISIONS.keys() - names == set(), "these are decided on and do not exist"
    wrong = [
        f"{function.signature}: granted to {set(function.granted) or 'nobody'}"
        for function in functions(db)
        if DECISIONS.get(without_number(function.name)) != set(function.granted)
    ]
    assert wrong == []
    assert any(GENERATED.match(function.name) for function in functions(db))  # of a queue


def outcome(db: Connection, role: str, function: Function, values: dict[str, Any]) -> str:
    """Whether the role was let in; what the function says after that does not matter."""
    try:
        with db.transaction(force_rollback=True):
            db.execute(f"set local role {role}".encode())
            function.call(db, values)
    except psycopg.errors.InsufficientPrivilege as error:
        kind = "procedure" if function.is_procedure else "function"
        if error.diag.message_primary in {
            f"permission denied for {kind} {function.name}",
            "permission denied for schema pgque",
        }:
            return "refused"
        return f"fails inside: {error}"
    except psycopg.Error:
        pass
    return "let in"


@pytest.mark.parametrize("role", MAY)
def test_each_role_gets_into_its_own_functions_and_no_others(db: Connection, role: str) -> None:
    wrong = []
    for function in functions(db):
        allowed = DECISIONS.get(without_number(function.name), frozenset()) & MAY[role]
        # Without sense, where it must not matter, but of the right types: a strict function is not
        # even looked at for a null, and a text that is no number would be refused by itself.
        values = sample_values(db, function) if allowed else TYPED_VALUES
        found = outcome(db, role, function, values)
        if found != ("let in" if allowed else "refused"):
            wrong.append(f"{function.signature}: {found}")
    assert wrong == []


def test_the_sample_calls_work_so_that_inner_refusals_would_show(db: Connection) -> None:
    """Without arguments that fit, the calls above would say little."""
    working = 0
    for function in functions(db):
        try:
            with db.transaction(force_rollback=True):
                function.call(db, sample_values(db, function))
                working += 1
        except psycopg.Error:
            pass
    assert working / len(functions(db)) > 0.7


def test_public_has_no_right_on_anything(db: Connection) -> None:
    open_to_all = db.rows(
        "select p.oid::regprocedure::text from pg_proc p"
        " where p.pronamespace = 'pgque'::regnamespace"
        " and has_function_privilege('public', p.oid, 'execute')"
        " union all select c.oid::regclass::text from pg_class c, aclexplode(c.relacl) a"
        " where c.relnamespace = 'pgque'::regnamespace and a.grantee = 0"
        " union all select n.nspname from pg_namespace n, aclexplode(n.nspacl) a"
        " where n.nspname = 'pgque' and a.grantee = 0"
    )
    assert open_to_all == []


def test_relations_are_granted_as_decided(db: Connection) -> None:
    """Readers and admins read some; nobody may change any but by a function."""
    granted = {
        (without_number(name), role, privilege)
        for name, role, privilege in db.rows(
            "select c.relname::text, a.grantee::regrole::text, a.privilege_type"
            " from pg_class c, aclexplode(c.relacl) a"
            " where c.relnamespace = 'pgque'::regnamespace and a.grantee <> c.relowner"
        )
    }
    decided = {
        *((name, role, "SELECT") for name in SEEN_BY_READERS for role in READING),
        *((name, "pgque_writer", "SELECT") for name in SEEN_BY_WRITERS),
        ("idem", "pgque_admin", "SELECT"),
        ("event_N_id_seq", "pgque_writer", "USAGE"),
    }
    assert granted - decided == set()
    readable = {(name, role) for name, role, _ in granted}
    assert {(name, "pgque_reader") for name in SEEN_BY_READERS} <= readable
    assert {(name, "pgque_writer") for name in SEEN_BY_WRITERS} <= readable


def test_columns_are_granted_as_decided(db: Connection) -> None:
    """Writers may COPY what is theirs to say, and so forge no id, time or transaction."""
    granted = {
        (f"{without_number(name)}.{column}", role, privilege)
        for name, column, role, privilege in db.rows(
            "select c.relname::text, t.attname::text, a.grantee::regrole::text, a.privilege_type"
            " from pg_class c join pg_attribute t on t.attrelid = c.oid, aclexplode(t.attacl) a"
            " where c.relnamespace = 'pgque'::regnamespace and a.grantee <> c.relowner"
        )
    }
    assert granted == {(column, "pgque_writer", "INSERT") for column in WRITTEN_BY_WRITERS}


def test_nobody_changes_a_table_by_hand_or_creates_one(db: Connection) -> None:
    tables = db.rows(
        "select oid::regclass::text from pg_class"
        " where relnamespace = 'pgque'::regnamespace and relkind in ('r', 'p')"
    )
    db.execute("set local role t_admin")  # a member of both others
    statements = ["create table pgque.mine ()"]
    for (table,) in tables:
        statements += [f"delete from {table}", f"truncate {table}"]
        statements += [f"lock table {table} in access exclusive mode"]
    for statement in statements:
        with refused("42501"), db.transaction():
            db.execute(statement.encode())


def test_an_admin_may_run_the_sql_of_a_batch(db: Connection) -> None:
    batch = db.value("select sub_batch from pgque.subscription where sub_batch is not null limit 1")
    db.execute("set local role t_admin")
    assert len(db.rows(db.value("select pgque.batch_event_sql(%s)", batch))) == 1


def test_an_admin_runs_the_loops_that_commit(populated_url: str) -> None:
    with connect(populated_url) as db:
        db.execute("set role t_admin")
        db.execute("call pgque.ticker_loop('0')")
        db.execute("call pgque.maint_loop('0')")


def test_what_triggers_call_has_no_more_rights_than_its_caller(db: Connection) -> None:
    raised = db.rows(
        "select proname from pg_proc where pronamespace = 'pgque'::regnamespace and prosecdef"
        " and proname = any (%s)",
        TRIGGERS.split(),
    )
    assert raised == []

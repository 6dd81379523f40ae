"""Text of users stays text, in every argument of every function.

The functions and arguments are the catalog's, so a new one is attacked as soon as it is there.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.conftest import NewDatabase, Server, administer
from tests.support.queues.catalog import (
    Argument,
    Function,
    populate,
    public_functions,
    sample_values,
)
from tests.support.queues.sql import Connection, connect, refused

ATTACKS = [
    "'; select canary.sing(); --",
    "'); select canary.sing(); --",
    "x'); drop table public.canary; drop role t_canary; --",
    "' || canary.sing() || '",
    '" || canary.sing() || "',
    '"); select canary.sing(); --',
    "$$; select canary.sing(); --",
    "$f$; end; $f$; select canary.sing(); --",
    "\\'; select canary.sing(); --",
    "\\",
    "\uff07; select canary.sing(); --",
    "'\n; select canary.sing();\n--",
    "*/ ; select canary.sing(); /*",
    "(select canary.sing())",
    "1; select canary.sing()",
    "%1$s %I %L %s %",
    "{} [] , \" ' % _ \\",
    "",
    "\u202e\U0001f600",
    "x" * 3000,
]
# Arguments that are SQL by what they mean. They run with the rights of whoever passes them.
SQL_BY_MEANING = {("get_batch_cursor", "i_extra_where")}
# Errors of data (22), of a rule of ours (PQ), a failed assertion of the test helpers, and what
# PostgreSQL says of a text that is no table's name.
ORDERLY = ("PQ", "22", "P0004", "42602", "42P01", "54000")


@pytest.fixture(scope="module")
def attacked(server: Server, new_database: NewDatabase) -> Iterator[Connection]:
    """A connection of the owner, for whom whatever is smuggled in would run."""
    administer(server, "create role t_canary")
    with new_database() as url, connect(url) as db:
        populate(db)
        db.execute("create table public.canary ()")
        db.execute("create schema canary")
        db.execute("create sequence canary.songs")
        db.execute(
            "create function canary.sing() returns bigint language sql volatile as"
            " $$ select nextval('canary.songs') $$"
        )
        yield db
    administer(server, "drop role t_canary")


@pytest.fixture(scope="module")
def targets(attacked: Connection) -> list[tuple[Function, dict[str, Any]]]:
    """Every function with arguments that fit."""
    return [(each, sample_values(attacked, each)) for each in public_functions(attacked)]


def is_silent(db: Connection) -> bool:
    """Whether nothing was executed; a sequence remembers it even when it was rolled back."""
    silent: bool = db.value(
        "select not is_called and to_regclass('public.canary') is not null"
        " and to_regrole('t_canary') is not null from canary.songs"
    )
    if not silent:
        db.value("select setval('canary.songs', 1, false)")
    return silent


def text_arguments(function: Function) -> list[Argument]:
    return [
        each
        for each in function.arguments
        if each.holds_text and (function.name, each.name) not in SQL_BY_MEANING
    ]


@pytest.mark.parametrize(
    ("attack", "conforming"),
    [(attack, "on") for attack in ATTACKS]
    + [(attack, "off") for attack in ATTACKS if "\\" in attack],
)
def test_no_argument_of_any_function_is_executed(
    attacked: Connection,
    targets: list[tuple[Function, dict[str, Any]]],
    attack: str,
    conforming: str,
) -> None:
    attacked.execute(f"set standard_conforming_strings = {conforming}".encode())
    attacked.execute("set escape_string_warning = off")
    wrong = []
    for function, values in targets:
        for argument in text_arguments(function):
            where = f"{function.signature} by {argument.name}"
            try:
                with attacked.transaction(force_rollback=True):
                    function.call(attacked, values | {argument.name: argument.holding(attack)})
                    assert is_silent(attacked), where
            except psycopg.Error as error:
                if not (error.sqlstate or "").startswith(ORDERLY):
                    wrong.append(f"{where}: {error.sqlstate} {error}")
            assert is_silent(attacked), where
    assert wrong == [], "\n".join(wrong)


def test_a_song_would_be_heard(attacked: Connection) -> None:
    """The same attacks are noticed in a function that glues its argument into SQL."""
    with attacked.transaction(force_rollback=True):
        attacked.execute(
            "create function pgque.careless(i_name text) returns void language plpgsql as"
            " $$ begin execute 'select ''' || i_name || ''''; end $$"
        )
        attacked.execute("grant execute on function pgque.careless to pgque_admin")
        (careless,) = [f for f in public_functions(attacked) if f.name == "careless"]
        careless.call(attacked, {"i_name": ATTACKS[0]})
    assert not is_silent(attacked)


@pytest.mark.parametrize(
    "attack",
    [
        "'); select canary.sing(); --",
        '" || canary.sing() || "',
        "$$; select canary.sing(); --",
        "\\'; select canary.sing(); --",
        "%1$s %I %L %s %",
        "{} [] , \" ' % _ \\",
        "\u202e\U0001f600",
    ],
)
class TestLifeUnderAnEvilName:
    """What a name was stored as comes back in later calls, rotation and maintenance among them."""

    def test_of_a_queue_and_its_consumer(self, attacked: Connection, attack: str) -> None:
        attacked.make_queue(attack, consumers=(attack,), max_retries="0")
        attacked.value("select pgque.insert_event(%s, %s, %s, %s, %s, %s, %s)", *[attack] * 7)
        (event,) = attacked.send(attack, queue=attack)
        attacked.tick(attack)
        batch = attacked.value("select pgque.next_batch(%s, %s)", attack, attack)
        plan = attacked.rows("select slice_sql from pgque.batch_read_plan(%s, 2)", batch)
        for (slice_sql,) in plan:
            attacked.rows(slice_sql)
        nack = "select pgque.nack_batch(%s, array[%s]::bigint[], '0', %s)"
        attacked.value(nack, batch, event, attack)
        attacked.value("select pgque.finish_batch(%s)", batch)
        attacked.value("select replayed from pgque.dlq_replay_all(%s)", attack)
        attacked.rotate(attack)
        attacked.value("select pgque.maint()")
        attacked.tick(attack)
        stored = attacked.drain(attack, attack)
        attacked.value("select pgque.drop_queue(%s, true)", attack)
        assert (stored, is_silent(attacked)) == ([attack], True)

    def test_of_an_owner_and_in_errors_that_name_it(
        self, attacked: Connection, attack: str
    ) -> None:
        with refused("PQ001", attack):
            attacked.send("x", queue=attack)
        with refused("PQ002", attack):
            attacked.value("select pgque.next_batch('q', %s)", attack)
        attacked.make_queue("owned")
        attacked.publish("x", queue="owned")
        claim = "select batch_id, epoch from pgque.claim_batch('owned', 'c', %s)"
        ((batch, epoch),) = attacked.rows(claim, attack)
        with refused("PQ004", attack):
            attacked.value("select pgque.next_batch('owned', 'c')")
        attacked.value("select pgque.ack_batch(%s, %s, %s)", batch, attack, epoch)
        attacked.value("select pgque.drop_queue('owned', true)")
        assert is_silent(attacked)

"""`pgque replicas`, `capture` and `uncapture`: what is replicated, and its state."""

import json

import pytest

from pgque_dagster.client import Client
from tests.cli.conftest import Pgque, Refused
from tests.support.queues.events import claim, publish
from tests.support.queues.sql import connect
from tests.support.servers.logins import as_login


@pytest.fixture(autouse=True)
def table(database_url: str) -> None:
    with connect(database_url) as db:
        db.execute("create table t (id int primary key); create table log (line text)")


def run(client: Client, query: str, *values: object) -> None:
    with client.transaction() as connection:
        connection.execute(query.encode(), values)


def record(client: Client, tick: int, **found: object) -> None:
    copied = {"table_name": "public.t", "location": "lake/t", "is_stored": True, **found}
    note = "select pgque.note_replicas('orders', 'billing', %s, %s::jsonb)"
    run(client, note, tick, json.dumps([copied]))
    mark = "select pgque.set_replicated('orders', 'billing', 'public.t', pg_current_snapshot(), '')"
    run(client, mark)


def compared(client: Client, tick: int, problem: str | None, why_not: str | None = None) -> None:
    note = "select pgque.note_verified('orders', 'billing', 'public.t', 2, %s, 9, %s, %s)"
    run(client, note, tick, problem, why_not)


def test_a_table_is_captured_and_uncaptured(pgque: Pgque, client: Client) -> None:
    done = pgque("capture", "t", "orders")
    assert (done.exit_code, done.stdout) == (0, "captured t into queue orders\n"), done.output
    assert pgque("capture", "t", "orders").exit_code == 0
    assert pgque("capture", "log", "orders", "--append", "--json").exit_code == 0
    run(client, "insert into t values (1)")
    run(client, "insert into log values ('a')")
    kinds = "select ev_extra1 from pgque.event"
    with client.transaction() as connection:
        assert {name for (name,) in connection.execute(kinds)} == {"public.t", "public.log"}

    done = pgque("uncapture", "t", "orders")
    assert (done.exit_code, done.stdout) == (0, "ended the capture of t into queue orders\n")


REFUSED = {
    "capture no_such orders": "has no table no_such. Create it, or correct its name",
    "capture t no_such": "queue no_such does not exist. Create it",
    "capture log orders": "it has no key: give it a primary key",
    "capture t orders --append": "it has a key: capture it without append",
    "uncapture t orders": "t is not captured into queue orders. Captured are: none",
    "uncapture no_such orders": "has no table no_such",
    "uncapture t no_such": "queue no_such does not exist",
    "replicas no_such": "queue no_such does not exist",
}


def test_impossible_requests_are_refused_with_a_reason(client: Client, refused: Refused) -> None:
    for words, told in REFUSED.items():
        assert told in refused(*words.split()).replace('"', "")


def test_without_the_right_the_owner_is_told_what_to_run(
    client: Client, refused: Refused, database_url: str
) -> None:
    login = as_login(database_url, "pgque_writer")
    told = refused("--url", login, "capture", "public.t", "orders")
    assert "Let the table's owner run: select pgque.capture('public.t', 'orders');" in told


def test_a_replica_is_shown_with_its_last_comparison(pgque: Pgque, client: Client) -> None:
    assert "no replicas" in pgque("replicas").stdout
    record(client, 2, is_copied=True, row_count=8)
    compared(client, 3, None)
    record(client, 4, added=1)

    (row,) = json.loads(pgque("replicas", "orders", "--json").stdout)

    status = json.loads(pgque("status", "orders", "--json").stdout)
    (short,) = status["replicas"]
    assert (short["table"], short["state"]) == ("public.t", "equal")
    assert short["last_comparison"].startswith("equal at tick 3, ")
    assert "public.t" in pgque("status").stdout
    assert row.pop("stored_ago") < 60
    assert row.pop("verified_ago") < 60
    assert row == {
        "queue": "orders",
        "consumer": "billing",
        "table": "public.t",
        "target": "lake/t",
        "state": "equal",
        "rows": 9,
        "rows_at": None,
        "stored_at": 4,
        "verified_at": 3,
        "batches_since": 1,
        "consumer_lag": 0,
        "reason": None,
    }


@pytest.mark.parametrize(
    "state",
    ["different", "apart", "copying", "may differ", "not verified", "to be copied", "held"],
)
def test_each_problem_has_a_state_and_an_exit_code(
    pgque: Pgque, client: Client, state: str
) -> None:
    record(client, 2, is_copied=True, row_count=8)
    compared(client, 3, "1 of 9 rows differ" if state == "different" else None)
    if state == "apart":
        run(client, "select pgque.set_apart('orders', 'billing', 'public.t', 4, 'no right')")
    elif state == "copying":
        run(client, "select pgque.set_apart('orders', 'billing', 'public.t', 4, null, '1 of 3')")
        (short,) = json.loads(pgque("status", "--json").stdout)["replicas"]
        assert (short["state"], short["copying"]) == ("copying", "1 of 3")
    elif state == "may differ":
        run(
            client,
            "select pgque.set_replicated('orders', 'billing', 'public.t', copied, '', 'its files')"
            " from pgque.replicated_tables('orders', 'billing')",
        )
    elif state == "not verified":
        compared(client, 4, None, "it took too long")
    elif state == "to be copied":
        run(client, "select pgque.forget_replicated('orders', 'billing', 'public.t')")
    elif state == "held":
        publish(client, ["a"])
        batch = claim(client, consumer="billing")
        batch.release()
        run(client, "select pgque.hold_batch(%s, %s, 'x')", batch.batch_id, batch.lease.epoch)

    done = pgque("replicas", "--json")

    (row,) = json.loads(done.stdout)
    assert row["state"] == ("equal" if state == "held" else state)
    reasons = {
        "different": "1 of 9 rows differ",
        "apart": "no right",
        "copying": "1 of 3",
        "may differ": "its files",
        "not verified": "it took too long",
        "to be copied": None,
        "held": "batch held x",
    }
    assert row["reason"] == reasons[state]
    wrong = {"different", "apart", "held"}
    assert done.exit_code == (3 if state in wrong else 0)
    assert (pgque("health").exit_code == 3) == (done.exit_code == 3)

"""A refused call names the role to grant."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgque_dagster
from pgque_dagster.client import Client, PermissionDenied, calls
from pgque_dagster.client.rights import grant, role_for
from tests.security.decisions import DECISIONS
from tests.support.logins import as_login

PACKAGE = Path(pgque_dagster.__file__).parent


def called() -> set[str]:
    """The functions that statements in the package call; texts that show one to the user too."""
    return {
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(r"\bpgque\.(\w+)\(", path.read_text())
    } & DECISIONS.keys()


def test_each_function_that_is_called_belongs_to_the_role_that_the_grants_give_it() -> None:
    # What only the owner of the schema may call has an error of its own.
    wrong = {
        name: role_for(f"select pgque.{name}()")
        for name in called()
        if DECISIONS[name] and role_for(f"select pgque.{name}()") not in DECISIONS[name]
    }
    assert wrong == {}
    assert len(called()) > 40


@pytest.fixture
def reader(database_url: str) -> Iterator[Client]:
    with Client(as_login(database_url, "pgque_reader")) as client:
        yield client


def test_a_refused_call_says_to_whom_which_role_is_granted(reader: Client) -> None:
    with pytest.raises(PermissionDenied) as denied:
        reader.send("orders", "x")

    assert str(denied.value) == (
        "permission denied for function send. "
        'Role "login_reader" needs pgque_writer: grant pgque_writer to "login_reader";'
    )


def test_a_refusal_within_a_transaction_says_it_too(reader: Client) -> None:
    with pytest.raises(PermissionDenied, match="grant pgque_admin"), reader.transaction():
        reader.run(calls.maintenance.maint())


def test_a_user_without_a_role_is_told_of_the_one_that_the_call_needs(database_url: str) -> None:
    with (
        Client(as_login(database_url)) as client,
        pytest.raises(PermissionDenied, match=r'schema pgque.*grant pgque_writer to "login"'),
    ):
        client.send("orders", "x")


def test_an_odd_name_is_quoted() -> None:
    assert grant("pgque_reader", 'o"dd') == 'grant pgque_reader to "o""dd";'

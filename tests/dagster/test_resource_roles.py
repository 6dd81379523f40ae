"""`PgqueResource` needs no more rights than necessary, and names the right that is missing."""

from typing import Any

import pytest

from pgque_dagster import PgqueResource
from pgque_dagster.client import Client, PermissionDenied
from pgque_dagster.client.queues import queue_names
from tests.support.queues.sql import connect, rows
from tests.support.servers.logins import as_login

OPTIONS: dict[str, Any] = {"ticker_max_lag": "7 seconds", "max_retries": 9}


def declared(url: str, **settings: Any) -> PgqueResource:
    """A resource that may install nothing and declares the queue orders."""
    return PgqueResource(
        url=url,
        install="never",
        **{
            "queues": ["orders"],
            "queue_options": {"orders": OPTIONS},
            **settings,
        },
    )


def test_a_reader_starts_with_what_exists_and_sees_its_health(database_url: str) -> None:
    declared(database_url).database_url()

    resource = declared(as_login(database_url, "pgque_reader"))
    with resource.client() as client:
        found = client.run(queue_names())
        assert client.health()

    assert found == ["orders"]


def test_what_is_already_as_declared_is_not_written_again(database_url: str) -> None:
    def rows_written() -> list[Any]:
        with connect(database_url) as db:
            return rows(db, "select xmin::text from pgque.queue") + rows(
                db, "select last_value from pgque.queue_queue_id_seq"
            )

    declared(database_url).database_url()
    before = rows_written()

    declared(database_url, queues=["orders", "orders"]).database_url()

    assert rows_written() == before


def test_only_options_that_differ_are_set(database_url: str) -> None:
    with Client(database_url) as client:
        client.create_queue("orders", ticker_max_lag="7s", max_retries=3, ticker_max_count=11)

    declared(database_url).database_url()

    with connect(database_url) as db:
        assert rows(
            db,
            "select queue_ticker_max_lag::text, queue_max_retries, queue_ticker_max_count"
            " from pgque.queue",
        ) == [("00:00:07", 9, 11)]


def test_a_queue_that_is_missing_is_named_to_a_reader_with_what_an_administrator_runs(
    database_url: str,
) -> None:
    resource = declared(
        as_login(database_url, "pgque_reader"),
        queues=["or'ders"],
        queue_options={"or'ders": {"max_retries": 9}},
    )

    with pytest.raises(PermissionDenied) as denied:
        resource.database_url()

    assert str(denied.value) == (
        """queue "or'ders" does not exist, and role "login_reader" may not create it. """
        """Let a role that has pgque_admin run: select pgque.create_queue('or''ders', """
        """'{"max_retries": 9}'); or: grant pgque_admin to "login_reader";"""
    )
    with connect(database_url) as db:
        db.execute(str(denied.value).partition("run: ")[2].partition(" or: ")[0].encode())
    assert resource.database_url()


def test_options_that_differ_are_named_to_who_may_not_set_them(database_url: str) -> None:
    with Client(database_url) as client:
        client.create_queue("orders", max_retries=3)
    resource = declared(as_login(database_url, "pgque_reader"))

    with pytest.raises(PermissionDenied) as denied:
        resource.database_url()

    assert str(denied.value) == (
        'queue "orders" differs from queue_options (max_retries is 3, not 9; ticker_max_lag is '
        '00:00:03, not 00:00:07), and role "login_reader" may not set them. Correct queue_options, '
        "or let a role that has pgque_admin run: select pgque.create_queue('orders', "
        """'{"max_retries": 9, "ticker_max_lag": "7 seconds"}'); """
        'or: grant pgque_admin to "login_reader";'
    )

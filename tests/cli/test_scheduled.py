"""`pgque send --at` and with keys; `pgque scheduled`: what waits for its time."""

import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from click.testing import Result

from pgque_dagster.client import Client

Pgque = Callable[..., Result]
Refused = Callable[..., str]


def entry_of(result: Result) -> str:
    found = re.match(r"scheduled entry (\d+) for orders at ", result.output)
    assert found, result.output
    return found[1]


@pytest.mark.parametrize(
    "time", ["2130-12-24", "2130-12-24T18:00", "2130-12-24T18:00+01:00", "90d"]
)
def test_an_event_with_a_time_waits_in_the_list(pgque: Pgque, client: Client, time: str) -> None:
    entry = entry_of(pgque("send", "orders", "1", "--at", time, "--type", "reminder"))

    listed = pgque("scheduled", "list", "orders").output
    assert entry in listed
    assert "reminder" in listed


def test_a_time_is_that_of_its_zone(pgque: Pgque, client: Client) -> None:
    pgque("send", "orders", "1", "--at", "2130-12-24T18:00+01:00")

    (waiting,) = client.list_scheduled("orders")
    assert waiting.deliver_at == datetime(2130, 12, 24, 17, tzinfo=UTC)


def test_a_time_that_is_past_sends_at_once(pgque: Pgque, client: Client) -> None:
    result = pgque("send", "orders", "1", "--at", "2001-01-01")

    assert result.output == "sent event 1 to orders\n"


@pytest.mark.parametrize("time", ["", "soon", "2130-13-01", "10x", "m", "999999999d"])
def test_a_time_that_is_none_is_refused(pgque: Pgque, client: Client, time: str) -> None:
    result = pgque("send", "orders", "1", "--at", time)

    assert result.exit_code != 0
    assert repr(time) in result.stderr
    assert client.list_scheduled("orders") == []


def test_a_cancelled_entry_is_gone(pgque: Pgque, refused: Refused, client: Client) -> None:
    entry = entry_of(pgque("send", "orders", "1", "--at", "1d"))

    assert pgque("scheduled", "cancel", entry).output == f"cancelled entry {entry}\n"
    assert pgque("scheduled", "list", "orders").output == "queue orders has nothing scheduled\n"
    assert entry in refused("scheduled", "cancel", entry)


def test_an_event_under_a_key_is_sent_once(pgque: Pgque, client: Client) -> None:
    send = ("send", "orders", "1", "--idem-key", "order-1", "--idem-ttl", "1d")

    assert pgque(*send).output == "sent event 1 to orders\n"
    assert pgque(*send).output == "sent event 1 to orders before, not again\n"


def test_an_empty_key_is_refused(refused: Refused, client: Client) -> None:
    assert "1 to 1000 bytes" in refused("send", "orders", "1", "--idem-key", "")


def test_a_partition_key_arrives(pgque: Pgque, client: Client) -> None:
    pgque("send", "orders", "1", "--partition-key", "customer 7")
    pgque("send", "orders", "2", "--partition-key", "customer 8", "--idem-key", "k")

    client.force_next_tick("orders")
    client.ticker()
    batch = client.claim("orders", "billing", owner="test")
    assert batch is not None
    assert [event.extra1 for event in batch.events()] == ["customer 7", "customer 8"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("-", "--at", "1d"),
        ("-", "--idem-key", "k"),
        ("-", "--partition-key", "k"),
        ("1", "--at", "1d", "--idem-key", "k"),
        ("1", "--at", "1d", "--partition-key", "k"),
    ],
)
def test_what_does_not_go_together_is_refused(
    pgque: Pgque, client: Client, arguments: tuple[str, ...]
) -> None:
    result = pgque("send", "orders", *arguments, stdin="1\n")

    assert result.exit_code == 2
    assert "no keys" in result.stderr
    assert client.list_scheduled("orders") == []

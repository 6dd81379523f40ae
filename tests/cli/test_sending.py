"""`pgque send`: one payload, or lines."""

import os
import re
import threading
from typing import Any

import pytest

from pgque_dagster.cli import printing
from pgque_dagster.cli.printing import announce_if_slow
from pgque_dagster.client import Client
from tests.cli.conftest import Pgque, Refused, last_words, started
from tests.support.queues.events import claim, tick
from tests.support.queues.sql import PATIENCE_SECONDS
from tests.support.runner.waiting import wait_until


def sent(client: Client) -> list[tuple[str | None, str | None]]:
    """What a consumer gets: type and payload of each event."""
    tick(client)
    batch = claim(client, consumer="billing")
    found = [(event.type, event.payload) for event in batch.events()]
    batch.ack()
    return found


def test_a_payload_arrives_as_it_was_written(pgque: Pgque, client: Client) -> None:
    result = pgque("send", "orders", '{"b":1,  "a":1.50}', "--type", "order")
    assert result.output == "sent event 1 to orders\n"
    pgque("send", "orders", "free text", "--text")
    assert sent(client) == [("order", '{"b":1,  "a":1.50}'), ("default", "free text")]


def test_what_cannot_be_stored_is_refused(refused: Refused, client: Client) -> None:
    for payload in ('{"id": ', "", "NaN", "{'id': 1}", "[" * 100_000, "free text"):
        assert "is not JSON" in refused("send", "orders", payload)
    for line, why in ((b'"\xff"\n', "UTF-8"), (b"a\0b\n", "NUL byte")):
        assert why in refused("send", "orders", "-", "--text", stdin=line)
    assert sent(client) == []


def test_lines_are_sent_in_order_over_several_calls(pgque: Pgque, client: Client) -> None:
    lines = "".join(f'{{"id": {number}}}\n' for number in range(2001))
    result = pgque("send", "orders", "-", stdin=lines)
    assert result.output == "events sent to orders: 2001\n"
    assert [payload for _, payload in sent(client)] == lines.splitlines()
    pgque("send", "orders", "-", stdin="1\r\n\n  \n2")
    assert [payload for _, payload in sent(client)] == ["1", "2"]


def test_a_malformed_line_is_named_and_no_line_is_sent(refused: Refused, client: Client) -> None:
    lines = "1\n" * 1500 + '{"id"\n5\n'
    assert "line 1501 is not JSON" in refused("send", "orders", "-", stdin=lines)
    assert sent(client) == []


def test_the_error_of_a_missing_queue_names_near_ones(refused: Refused, client: Client) -> None:
    client.create_queue("events")
    line = refused("send", "order", "{}", "--wait", "0s")
    assert "Did you mean orders? Create it with `pgque create-queue order`." in line


def test_a_queue_that_comes_late_is_waited_for_before_standard_input_is_read(
    pgque: Pgque, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = printing._tell

    def tell_and_create(what: str) -> None:
        tell(what)
        with Client(client.url) as another:
            another.create_queue(what.split()[3])

    monkeypatch.setattr(printing, "_MOMENT_SECONDS", 0.05)
    monkeypatch.setattr(printing, "_tell", tell_and_create)
    one = pgque("send", "late", "{}", "--wait", "60s")
    lines = pgque("send", "later", "-", "--wait", "60s", stdin="1\n2\n")
    assert one.stdout == "sent event 1 to late\n"
    told = r"pgque: waiting for queue late in database \w+ on \S+ \.\.\.\n"
    assert re.fullmatch(told, one.stderr)
    assert lines.stdout == "events sent to later: 2\n"


def test_what_is_over_soon_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    with announce_if_slow("starting Spark"):
        pass
    with pytest.raises(ValueError, match="boom"), announce_if_slow("starting Spark"):
        raise ValueError("boom")
    wait_until(lambda: set(threading.enumerate()) <= before)
    assert capsys.readouterr() == ("", "")


def test_a_closed_standard_input_is_an_error_of_one_line(database_url: str, client: Client) -> None:
    closed: dict[str, Any] = {"preexec_fn": lambda: os.close(0)}
    with started(database_url, "send", "orders", "-", **closed) as process:
        assert process.wait(PATIENCE_SECONDS) == 1
        assert re.fullmatch(r"pgque: .*standard input is closed.*\n", last_words(process))

"""`pgque send`: one payload, lines, now, later, or once."""

import os
import re
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import Result

from pgque_dagster.cli import output
from pgque_dagster.cli.output import announce_if_slow
from pgque_dagster.client import Client
from tests.cli.conftest import Pgque, Refused, last_words, started
from tests.client.consumer.support import wait_until
from tests.support.events import claim, tick
from tests.support.queues import PATIENCE_SECONDS


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
    for line, why in ((b'"\xff"\n', "UTF-8"), (b"a\0b\n", "zero byte")):
        assert why in refused("send", "orders", "-", "--text", stdin=line)
    assert sent(client) == []


def test_lines_are_sent_in_order_over_several_batches(pgque: Pgque, client: Client) -> None:
    lines = "".join(f'{{"id": {number}}}\n' for number in range(25))
    result = pgque("send", "orders", "-", "--batch-size", "10", stdin=lines)
    assert result.output == "events sent to orders: 25\n"
    assert [payload for _, payload in sent(client)] == lines.splitlines()
    pgque("send", "orders", "-", stdin="1\r\n\n  \n2")
    assert [payload for _, payload in sent(client)] == ["1", "2"]


def test_a_malformed_line_is_named_and_its_batch_is_not_sent(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    line = refused("send", "orders", "-", "--batch-size", "2", stdin='1\n2\n3\n{"id"\n5\n')
    assert "line 4 is not JSON" in line
    assert "2 events are sent, go on with --from-line 3" in line
    pgque("send", "orders", "-", "--from-line", "5", stdin='1\n2\n3\n{"id"\n5\n')
    assert [payload for _, payload in sent(client)] == ["1", "2", "5"]


def test_the_error_of_a_missing_queue_names_near_ones_and_says_who_makes_it(
    refused: Refused, client: Client
) -> None:
    client.create_queue("events")
    line = refused("send", "order", "{}", "--wait", "0s")
    for words in (
        '"order"',
        "Did you mean orders?",
        "when its sensor first runs",
        "--wait 60s",
        "`pgque create-queue order`",
    ):
        assert words in line
    assert "events" not in line


def test_a_queue_that_comes_late_is_waited_for_before_standard_input_is_read(
    pgque: Pgque, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = output._tell

    def tell_and_create(what: str) -> None:
        tell(what)
        with Client(client.url) as another:
            another.create_queue(what.split()[-1])

    monkeypatch.setattr(output, "_MOMENT_SECONDS", 0.05)
    monkeypatch.setattr(output, "_tell", tell_and_create)
    one = pgque("send", "late", "{}", "--wait", "60s")
    lines = pgque("send", "later", "-", "--wait", "60s", stdin="1\n2\n")
    assert one.stdout == "sent event 1 to late\n"
    assert one.stderr == "pgque: waiting for queue late ...\n"
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ""),
        (["{}", "--from-line", "2"], "for lines"),
        (["-", "--at", "1d"], "no keys"),
        (["-", "--idem-key", "k"], "no keys"),
        (["-", "--partition-key", "k"], "no keys"),
        (["1", "--at", "1d", "--idem-key", "k"], "no keys"),
        (["1", "--at", "1d", "--partition-key", "k"], "no keys"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(
    misused: Refused, client: Client, arguments: list[str], words: str
) -> None:
    assert words in misused("send", "orders", *arguments, stdin="1\n")
    assert client.list_scheduled("orders") == []
    assert sent(client) == []


def entry_of(result: Result) -> str:
    found = re.match(r"scheduled entry (\d+) for orders at ", result.output)
    assert found, result.output
    return found[1]


class TestScheduled:
    def test_an_event_with_a_time_is_scheduled(self, pgque: Pgque, client: Client) -> None:
        times = ("2130-12-24", "2130-12-24T18:00", "90d", "2130-12-24T18:00+01:00")
        for time in times:
            entry = entry_of(pgque("send", "orders", "1", "--at", time, "--type", "reminder"))
            waiting = {str(each.id): each for each in client.list_scheduled("orders")}
            assert waiting[entry].type == "reminder"
        assert waiting[entry].deliver_at == datetime(2130, 12, 24, 17, tzinfo=UTC)
        assert len(waiting) == len(times)

    def test_a_time_that_is_past_sends_at_once(self, pgque: Pgque, client: Client) -> None:
        result = pgque("send", "orders", "1", "--at", "2001-01-01")
        assert result.output == "sent event 1 to orders\n"

    def test_a_time_that_is_none_is_refused(self, pgque: Pgque, client: Client) -> None:
        for time in ("", "soon", "2130-13-01", "10x", "m", "999999999d"):
            result = pgque("send", "orders", "1", "--at", time)
            assert result.exit_code != 0
            assert repr(time) in result.stderr
        assert client.list_scheduled("orders") == []


def test_keys_arrive(pgque: Pgque, refused: Refused, client: Client) -> None:
    send = ("send", "orders", "1", "--idem-key", "order-1", "--idem-ttl", "1d")
    assert pgque(*send).output == "sent event 1 to orders\n"
    assert pgque(*send).output == "sent event 1 to orders before, not again\n"
    assert "1 to 1000 bytes" in refused("send", "orders", "1", "--idem-key", "")
    pgque("send", "orders", "1", "--partition-key", "customer 7")
    pgque("send", "orders", "2", "--partition-key", "customer 8", "--idem-key", "k")
    tick(client)
    events = claim(client, consumer="billing").events()
    assert [event.extra1 for event in events] == [None, "customer 7", "customer 8"]

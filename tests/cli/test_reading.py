"""`pgque peek` and `pgque tail`: events without a consumer, or as one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client, peeking
from tests.support.logins import as_login
from tests.support.queues import PATIENCE_SECONDS

Pgque = Callable[..., Result]
Refused = Callable[..., str]


def publish(client: Client, *payloads: str) -> None:
    client.send_batch("orders", list(payloads))
    client.force_next_tick("orders")
    client.ticker()


def payloads(result: Result) -> list[str]:
    return [event["payload"] for event in json.loads(result.stdout)]


def test_peek_shows_the_newest_events_and_moves_nothing(pgque: Pgque, client: Client) -> None:
    publish(client, "a", "b")
    publish(client, "c", "d")

    assert payloads(pgque("peek", "orders", "--limit", "3", "--json")) == ["b", "c", "d"]
    assert payloads(pgque("peek", "orders", "--limit", "9", "--json")) == ["a", "b", "c", "d"]

    (consumer,) = client.consumers("orders")
    assert (consumer.pending_events, consumer.batch_id) == (4, None)


def test_peek_begins_at_a_position(pgque: Pgque, client: Client) -> None:
    publish(client, "a", "b")
    publish(client, "c", "d")

    shown = ("peek", "orders", "--json", "--limit", "3", "--from")
    assert payloads(pgque(*shown, "earliest")) == ["a", "b", "c"]
    assert payloads(pgque(*shown, "2")) == ["c", "d"]
    assert payloads(pgque(*shown, "2001-01-01")) == ["a", "b", "c"]
    assert payloads(pgque(*shown, "latest")) == []


def test_peek_of_an_empty_queue_says_so(pgque: Pgque, client: Client) -> None:
    assert "retains no events" in pgque("peek", "orders").output


def test_peek_of_an_unknown_queue_names_near_ones(refused: Refused, client: Client) -> None:
    assert "Did you mean orders?" in refused("peek", "order")


def test_long_payloads_are_cut_for_the_table_only(pgque: Pgque, client: Client) -> None:
    publish(client, "x" * 500)

    assert "..." in pgque("peek", "orders").output
    assert "x" * 500 in pgque("peek", "orders", "--full").output
    assert payloads(pgque("peek", "orders", "--json")) == ["x" * 500]


@contextmanager
def tailing(url: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "pgque_dagster.cli", "tail", "orders", "--json", *arguments],
        env={**os.environ, "PGQUE_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline())["payload"] for _ in range(count)]


def test_tail_follows_and_moves_nothing(client: Client, database_url: str) -> None:
    publish(client, "a")
    with tailing(database_url, "--from", "earliest") as process:
        assert read(process, 1) == ["a"]
        publish(client, "b", "c")
        assert read(process, 2) == ["b", "c"]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""

    (consumer,) = client.consumers("orders")
    assert (consumer.pending_events, consumer.batch_id) == (3, None)


def test_a_long_queue_is_read_in_pages(
    pgque: Pgque, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peeking, "_PAGE", 3)
    publish(client, *"abcdefg")
    for payload in "hij":
        publish(client, payload)

    newest = peeking.newest_tick(client, "orders")
    pages = list(peeking.pages(client, "orders", 1, newest))

    assert ["".join(str(event.payload) for event in page) for page in pages] == [
        "abc", "def", "g", "hij",
    ]  # fmt: skip
    lines = pgque("tail", "orders", "--from", "earliest", "--limit", "10").output.splitlines()
    assert [line.split()[-1] for line in lines] == list("abcdefghij")


def test_tail_ends_after_as_many_events_as_wanted(pgque: Pgque, client: Client) -> None:
    publish(client, "a", "b")
    publish(client, "c", "d")

    lines = pgque("tail", "orders", "--from", "earliest", "--limit", "3").output.splitlines()

    assert [line.split()[-1] for line in lines] == ["a", "b", "c"]


@pytest.mark.parametrize("options", [("--from", "earliest"), ("--consumer", "billing")])
def test_tail_ends_when_its_reader_goes_away_although_nothing_comes(
    client: Client, database_url: str, options: tuple[str, str]
) -> None:
    publish(client, "a")
    with tailing(database_url, *options) as process:
        assert read(process, 1) == ["a"]
        assert process.stdout is not None
        process.stdout.close()

        assert process.wait(PATIENCE_SECONDS) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_tail_as_a_consumer_acks_what_it_has_printed(pgque: Pgque, client: Client) -> None:
    publish(client, "a", "b")
    publish(client, "c")

    lines = pgque("tail", "orders", "--consumer", "billing", "--limit", "3").output.splitlines()

    assert [line.split()[-1] for line in lines] == ["a", "b", "c"]
    (consumer,) = client.consumers("orders")
    assert (consumer.pending_events, consumer.batch_id) == (0, None)


def test_what_a_broken_pipe_swallowed_comes_again(client: Client, database_url: str) -> None:
    publish(client, *("x" * 100_000 for _ in range(20)))
    with tailing(database_url, "--consumer", "billing") as process:
        assert process.stdout is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(PATIENCE_SECONDS) == 141

    again = client.claim("orders", "billing", owner="test")
    assert again is not None
    assert len(again.events()) == 20


def test_payloads_cannot_steer_the_terminal(pgque: Pgque, client: Client) -> None:
    publish(client, "red\x1b[31m\nnext")

    lines = pgque("tail", "orders", "--from", "earliest", "--limit", "1").output.splitlines()

    assert [line.endswith(r"red\x1b[31m\nnext") for line in lines] == [True]


def test_a_consumer_takes_no_position(pgque: Pgque, client: Client) -> None:
    result = pgque("tail", "orders", "--consumer", "billing", "--from", "earliest")

    assert result.exit_code == 2
    assert "pgque seek" in result.stderr


def test_tail_refuses_who_may_not_read_at_once(database_url: str, client: Client) -> None:
    url = as_login(database_url, "pgque_writer")

    result = CliRunner().invoke(main, ["tail", "orders", "--url", url])

    assert (result.exit_code, "grant pgque_reader" in result.stderr) == (1, True)


@pytest.mark.parametrize("command", ["peek", "tail"])
def test_a_position_that_is_gone_is_refused(refused: Refused, client: Client, command: str) -> None:
    assert "tick" in refused(command, "orders", "--from", "99")

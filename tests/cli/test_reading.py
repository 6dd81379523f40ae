"""`pgque peek`: events without a consumer, once or as they come; `pgque dead-letters`."""

import json
import signal
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client, peeking
from tests.cli.conftest import Pgque, Refused, last_words, started
from tests.support.events import claim, tick
from tests.support.logins import as_login
from tests.support.queues import PATIENCE_SECONDS


def publish(client: Client, *payloads: str) -> None:
    client.send_batch("orders", list(payloads))
    tick(client)


def payloads(result: Result) -> list[str]:
    return [event["payload"] for event in json.loads(result.stdout)]


def last_columns(result: Result) -> str:
    return "".join(line.split()[-1] for line in result.output.splitlines())


def standing(client: Client) -> tuple[int, int | None]:
    """How many events the consumer has yet to get, and its open batch."""
    (consumer,) = client.consumers("orders")
    return consumer.pending_events or 0, consumer.batch_id


class TestPeek:
    def test_it_shows_the_newest_events_or_begins_at_a_position(
        self, pgque: Pgque, client: Client
    ) -> None:
        assert "retains no events" in pgque("peek", "orders").output
        publish(client, "a", "b")
        publish(client, "c", "d")
        peek = ("peek", "orders", "--json", "--limit", "3")
        assert payloads(pgque(*peek)) == ["b", "c", "d"]
        assert payloads(pgque("peek", "orders", "--limit", "9", "--json")) == ["a", "b", "c", "d"]
        for position, shown in (
            ("earliest", ["a", "b", "c"]),
            ("2", ["c", "d"]),
            ("2001-01-01", ["a", "b", "c"]),
            ("latest", []),
        ):
            assert payloads(pgque(*peek, "--from", position)) == shown
        assert standing(client) == (4, None)

    def test_what_is_not_there_is_refused(self, refused: Refused, client: Client) -> None:
        assert "Did you mean orders?" in refused("peek", "order")
        for options in ([], ["--follow"]):
            assert "tick" in refused("peek", "orders", "--from", "99", *options)

    def test_long_payloads_are_cut_for_the_table_only(self, pgque: Pgque, client: Client) -> None:
        publish(client, "x" * 500)
        assert "..." in pgque("peek", "orders").output
        assert payloads(pgque("peek", "orders", "--json")) == ["x" * 500]


def following(url: str, *arguments: str) -> Any:
    return started(url, "peek", "orders", "--follow", "--json", *arguments)


def read(process: Any, count: int) -> list[str]:
    return [json.loads(process.stdout.readline())["payload"] for _ in range(count)]


class TestFollow:
    def test_it_follows_and_moves_nothing(self, client: Client, database_url: str) -> None:
        publish(client, "a")
        with following(database_url, "--from", "earliest") as process:
            assert read(process, 1) == ["a"]
            publish(client, "b", "c")
            assert read(process, 2) == ["b", "c"]
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 130
            assert last_words(process) == ""
        assert standing(client) == (3, None)

    def test_a_long_queue_is_read_in_pages(
        self, pgque: Pgque, client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peeking, "_PAGE", 3)
        publish(client, *"abcdefg")
        for payload in "hij":
            publish(client, payload)
        pages = iter(peeking.follow(client, "orders", "earliest").__next__, [])
        read = ["".join(str(event.payload) for event in page) for page in pages]
        assert read == ["abc", "def", "g", "hij"]
        for limit in (9, 10):
            shown = pgque("peek", "orders", "--follow", "--from", "earliest", "--limit", str(limit))
            assert last_columns(shown) == "abcdefghij"[:limit]

    def test_it_ends_when_its_reader_goes_away_although_nothing_comes(
        self, client: Client, database_url: str
    ) -> None:
        publish(client, "a")
        with following(database_url, "--from", "earliest") as process:
            assert read(process, 1) == ["a"]
            process.stdout.close()
            assert process.wait(PATIENCE_SECONDS) == 141
            assert last_words(process) == ""

    def test_payloads_cannot_steer_the_terminal(self, pgque: Pgque, client: Client) -> None:
        publish(client, "red\x1b[31m\nnext")
        (line,) = pgque(
            "peek", "orders", "--follow", "--from", "1", "--limit", "1"
        ).output.splitlines()
        assert line.endswith(r"red\x1b[31m\nnext")

    def test_who_may_not_read_is_refused_at_once(self, database_url: str, client: Client) -> None:
        url = as_login(database_url, "pgque_writer")
        result = CliRunner().invoke(main, ["peek", "orders", "--follow", "--url", url])
        assert (result.exit_code, "grant pgque_reader" in result.stderr) == (1, True)


class TestDeadLetters:
    @pytest.fixture(autouse=True)
    def two(self, client: Client) -> list[int]:
        """Two events that the consumer gave up; their ids as dead letters."""
        publish(client, "first", "x" * 200)
        batch = claim(client, consumer="billing")
        batch.dead_letter([event.msg_id for event in batch.events()], reason="not JSON")
        batch.ack()
        return sorted(letter.id for letter in client.dead_letters("orders"))

    def left(self, client: Client) -> int:
        return len(client.dead_letters("orders"))

    def test_they_are_listed_shown_and_exported(
        self, pgque: Pgque, refused: Refused, two: list[int]
    ) -> None:
        short = pgque("dead-letters", "list", "orders").output
        assert "first" in short and "not JSON" in short
        assert "x" * 61 not in short
        assert len(pgque("dead-letters", "list", "orders", "--limit", "1").output.splitlines()) == 2
        shown = pgque("dead-letters", "show", "orders", str(two[1])).output
        assert "x" * 200 in shown and "billing" in shown
        assert "no dead letter 99" in refused("dead-letters", "show", "orders", "99")
        exported = pgque("dead-letters", "export", "orders").output.splitlines()
        assert [json.loads(line)["payload"] for line in exported] == ["first", "x" * 200]

    @pytest.mark.parametrize(
        ("filters", "replayed"),
        [
            ([], 2),
            (["--reason", "not%"], 2),
            (["--reason", "torn"], 0),
            (["--type", "default"], 2),
            (["--type", "other"], 0),
            (["--since", "1h"], 2),
            (["--since", "0s"], 0),
            (["--limit", "1"], 1),
        ],
    )
    def test_those_that_fit_are_replayed(
        self, pgque: Pgque, client: Client, filters: list[str], replayed: int
    ) -> None:
        result = pgque("dead-letters", "replay", "orders", *filters)
        assert result.output == f"dead letters replayed: {replayed}\n"
        assert self.left(client) == 2 - replayed

    def test_those_of_an_id_are_replayed_or_none(
        self, pgque: Pgque, refused: Refused, misused: Refused, client: Client, two: list[int]
    ) -> None:
        assert "999" in refused("dead-letters", "replay", "--id", str(two[0]), "--id=999")
        for both in ([], ["orders", "--id", "1"], ["--id", "1", "--limit", "1"]):
            misused("dead-letters", "replay", *both)
        assert self.left(client) == 2
        pgque("dead-letters", "replay", "--id", str(two[0]))
        assert [letter.id for letter in client.dead_letters("orders")] == [two[1]]

    def test_a_closed_queue_and_an_option_keep_them(
        self, pgque: Pgque, refused: Refused, client: Client
    ) -> None:
        client.configure_queue("orders", disable_insert="true")
        assert "takes no events" in refused("dead-letters", "replay", "orders")
        pgque("unregister", "orders", "billing", "--keep-dead-letters")
        assert self.left(client) == 2

    def test_they_are_purged_by_age(self, pgque: Pgque, misused: Refused, client: Client) -> None:
        for age in ("5", "-1d", "1w", "soon"):
            assert "30d" in misused("dead-letters", "purge", "orders", "--older-than", age)
        assert pgque("dead-letters", "purge", "orders").output == "dead letters purged: 0\n"
        assert self.left(client) == 2
        purged = pgque("dead-letters", "purge", "orders", "--older-than", "0s")
        assert purged.output == "dead letters purged: 2\n"
        assert self.left(client) == 0

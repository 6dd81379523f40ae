"""`pgque queues` lists the queues of all add-ons, and errors know them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from pgque_dagster import installer
from pgque_dagster.cli import main
from pgque_dagster.client import AsyncClient, Client, QueueNotFound
from tests.support.databases import empty_database

MESSAGES = (
    '"welcome" is a queue of messages (postgremq). Use client.messages, or the functions of '
    "postgremq. Pipelines read the log of its topic, postgremq.mail."
)
SERIAL = (
    '"journal" is a serial queue (qgres). Use client.serial, or the functions of qgres. Pipelines '
    "read its log, qgres.journal."
)


@pytest.fixture
def url(server: Any) -> Iterator[str]:
    """A database with a queue of each kind."""
    with empty_database(server) as url:
        installer.install(url, installer.ADDONS)
        with Client(url) as client:
            client.create_queue("orders")
            client.messages.create_topic("mail")
            client.messages.create_queue("welcome", "mail")
            client.messages.publish("mail", {"to": "ada"})
            client.serial.create("journal", "SP")
            client.serial.create("stack", "SR")
        yield url


def test_queues_of_all_kinds_are_listed(url: str) -> None:
    listed = CliRunner().invoke(main, ["--json", "queues"], env={"PGQUE_URL": url})
    assert listed.exit_code == 0, listed.output
    found = [(row["queue"], row["kind"], row["depth"]) for row in json.loads(listed.output)]
    assert found == [
        ("orders", "events", 0),
        ("welcome", "messages", 1),
        ("journal", "serial (SP)", None),
        ("stack", "serial (SR)", None),
    ]


def test_they_are_listed_as_a_table_too(url: str) -> None:
    listed = CliRunner().invoke(main, ["queues"], env={"PGQUE_URL": url})
    assert listed.exit_code == 0, listed.output
    assert [line.split()[0] for line in listed.output.splitlines()[-4:]] == [
        "orders",
        "welcome",
        "journal",
        "stack",
    ]


def test_the_help_says_which_depths_are_known() -> None:
    shown = " ".join(CliRunner().invoke(main, ["queues", "--help"]).output.split())
    assert "For postgremq the depth is the number of unfinished messages, for qgres it is" in shown
    assert "unknown (-)" in shown


@pytest.mark.parametrize(
    "command",
    [
        ("tail", "{}"),
        ("peek", "{}"),
        ("dead-letters", "list", "{}"),
        ("register", "{}", "billing"),
        ("send", "{}", "1"),
        ("drop-queue", "{}"),
    ],
    ids=lambda command: command[0],
)
def test_a_command_for_a_queue_of_an_addon_says_how_to_use_it(
    url: str, command: tuple[str, ...]
) -> None:
    for queue, told in (("welcome", MESSAGES), ("journal", SERIAL)):
        arguments = [part.format(queue) for part in command]
        refused = CliRunner().invoke(main, arguments, env={"PGQUE_URL": url})
        assert (refused.exit_code, refused.stderr) == (1, f"pgque: {told}\n")


def test_the_client_says_it_too(url: str) -> None:
    async def consume() -> None:
        async with AsyncClient(url) as client:
            await client.register_consumer("welcome", "billing")

    with Client(url) as client:
        for queue, told in (("welcome", MESSAGES), ("journal", SERIAL)):
            with pytest.raises(QueueNotFound) as refused:
                client.register_consumer(queue, "billing")
            assert str(refused.value) == told
        with pytest.raises(QueueNotFound, match=r"Use client.serial, or the functions of qgres\.$"):
            client.register_consumer("stack", "billing")
        with pytest.raises(QueueNotFound, match=r"Did you mean orders\?"):
            client.register_consumer("order", "billing")
    with pytest.raises(QueueNotFound) as refused:
        asyncio.run(consume())
    assert str(refused.value) == MESSAGES

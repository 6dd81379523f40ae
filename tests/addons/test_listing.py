"""`pgque status` lists the queues of all add-ons, and errors know them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from pgque_dagster import installer
from pgque_dagster.cli import main
from pgque_dagster.client import AsyncClient, Client, QueueNotFound
from tests.support.servers.databases import empty_database

MESSAGES = (
    '"welcome" is a queue of messages (postgremq). Use the functions of postgremq. '
    "Pipelines read its log, postgremq.mail."
)
SERIAL = (
    '"journal" is a serial queue (qgres). Use the functions of qgres. Pipelines '
    "read its log, qgres.journal."
)
COMMANDS = (
    "peek {}",
    "dead-letters list {}",
    "register {} billing",
    "send {} 1",
    "drop-queue {}",
)


@pytest.fixture
def url(server: Any) -> Iterator[str]:
    """A database with a queue of each kind."""
    with empty_database(server) as url:
        installer.install(url, installer.ADDONS)
        with Client(url) as client:
            client.create_queue("orders")
            with client.transaction() as db:
                db.execute("select postgremq.create_topic('mail')")
                db.execute("select postgremq.create_queue('welcome', 'mail')")
                db.execute("select postgremq.publish_message('mail', '{}')")
                db.execute("select qgres.queue__create('journal', 'SP')")
                db.execute("select qgres.queue__create('stack', 'SR')")
        yield url


def test_queues_of_all_kinds_are_listed(url: str) -> None:
    listed = CliRunner().invoke(main, ["--json", "status"], env={"PGQUE_URL": url})
    found = [
        (row["queue"], row["kind"], row["depth"]) for row in json.loads(listed.output)["queues"]
    ]
    assert found == [
        ("orders", "events", 0),
        ("welcome", "messages", 1),
        ("journal", "serial (SP)", None),
        ("stack", "serial (SR)", None),
    ]
    table = CliRunner().invoke(main, ["status"], env={"PGQUE_URL": url}).output
    assert all(f"\n{queue} " in table for queue, _, _ in found)
    shown = " ".join(CliRunner().invoke(main, ["status", "--help"]).output.split())
    assert "For postgremq, the depth is the number of unfinished messages" in shown
    assert "unknown (-)" in shown


def test_commands_and_calls_for_a_queue_of_an_addon_say_how_to_use_it(url: str) -> None:
    for queue, told in (("welcome", MESSAGES), ("journal", SERIAL)):
        for command in COMMANDS:
            arguments = command.format(queue).split()
            refused = CliRunner().invoke(main, arguments, env={"PGQUE_URL": url})
            assert (refused.exit_code, refused.stderr) == (1, f"pgque: {told}\n")

    async def register(queue: str) -> None:
        async with AsyncClient(url) as client:
            await client.register_consumer(queue, "billing")

    with Client(url) as client:
        for queue, told in (
            ("welcome", MESSAGES),
            ("journal", SERIAL),
            ("stack", "Use the functions of qgres."),
            ("order", "Did you mean orders?"),
        ):
            with pytest.raises(QueueNotFound) as raised:
                client.register_consumer(queue, "billing")
            assert told in str(raised.value)
            assert ("create_queue" in str(raised.value)) == (queue == "order")
    with pytest.raises(QueueNotFound) as raised:
        asyncio.run(register("welcome"))
    assert str(raised.value) == MESSAGES

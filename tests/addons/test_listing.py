"""`pgque queues` lists the queues of all add-ons."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from pgque_dagster import installer
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from tests.support.databases import empty_database


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
        yield url


def test_queues_of_all_kinds_are_listed(url: str) -> None:
    listed = CliRunner().invoke(main, ["--json", "queues"], env={"PGQUE_URL": url})
    assert listed.exit_code == 0, listed.output
    found = [(row["queue"], row["kind"], row["depth"]) for row in json.loads(listed.output)]
    assert found == [
        ("orders", "events", 0),
        ("welcome", "messages", 1),
        ("journal", "serial (SP)", None),
    ]


def test_they_are_listed_as_a_table_too(url: str) -> None:
    listed = CliRunner().invoke(main, ["queues"], env={"PGQUE_URL": url})
    assert listed.exit_code == 0, listed.output
    assert [line.split()[0] for line in listed.output.splitlines()[-3:]] == [
        "orders",
        "welcome",
        "journal",
    ]

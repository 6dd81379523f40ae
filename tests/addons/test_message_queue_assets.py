"""Queues of messages in the lineage: the check on dead letters and backlog."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import PgqueResource, build_message_queue_defs
from pgque_dagster.client import Client
from tests.support.databases import empty_database
from tests.support.queues import connect, value

LEASE = timedelta(seconds=30)


@pytest.fixture
def client(server: Any) -> Iterator[Client]:
    """A database with the queue emails, whose messages are delivered once."""
    with empty_database(server) as url:
        PgqueResource(url=url, addons=["postgremq"]).database_url()
        with Client(url) as client:
            client.messages.create_topic("mail")
            client.messages.create_queue("emails", "mail", max_attempts=1)
            yield client


def evaluate(client: Client, defs: dg.Definitions) -> dg.AssetCheckEvaluation:
    """Evaluates the one check."""
    resources = dg.Definitions(resources={"pgque": PgqueResource(url=client.url)})
    job = dg.Definitions.merge(defs, resources).resolve_implicit_global_asset_job_def()
    (found,) = job.execute_in_process().get_asset_check_evaluations()
    return found


def test_dead_letters_and_a_limited_backlog_fail_and_say_what_to_do(client: Client) -> None:
    unlimited = build_message_queue_defs(["emails"])
    limited = build_message_queue_defs(["emails"], max_dead_letters=1, max_unfinished=2)
    assert evaluate(client, unlimited).passed
    for number in range(3):
        client.messages.publish("mail", {"n": number})
    (message,) = client.messages.consume("emails", visibility=LEASE)

    assert evaluate(client, unlimited).passed
    found = evaluate(client, limited)
    assert not found.passed
    assert found.description == "3 unfinished messages, 2 allowed"
    assert (found.metadata["pending"].value, found.metadata["processing"].value) == (2, 1)

    client.messages.nack(message)
    with connect(client.url) as db:
        assert value(db, "select postgremq.move_messages_to_dlq()") == 1
    assert evaluate(client, limited).passed
    found = evaluate(client, unlimited)
    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.ERROR
    assert found.description == "1 dead letters, 0 allowed"
    assert "requeue_dlq_messages" in str(found.metadata["what_to_do"].value)

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="max_unfinished is -1"):
        build_message_queue_defs(["emails"], max_unfinished=-1)

"""Queues of messages in the lineage: the check on dead letters and backlog, in Python and YAML."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pgque_dagster import PgqueResource, build_message_queue_defs
from pgque_dagster.client import Client
from tests.support.databases import empty_database
from tests.support.dg_project import DgProject
from tests.support.queues import connect, value


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


def give_up(client: Client) -> None:
    """Makes a dead letter."""
    client.messages.publish("mail", {"to": "ada"})
    (message,) = client.messages.consume("emails", visibility=timedelta(seconds=30))
    client.messages.nack(message)
    with connect(client.url) as db:
        assert value(db, "select postgremq.move_messages_to_dlq()") == 1


def test_an_empty_queue_passes(client: Client) -> None:
    assert evaluate(client, build_message_queue_defs(["emails"])).passed


def test_a_dead_letter_fails_and_says_what_to_do(client: Client) -> None:
    give_up(client)

    found = evaluate(client, build_message_queue_defs(["emails"]))

    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.ERROR
    assert found.description == "1 dead letters, 0 allowed"
    assert "requeue_dlq_messages" in str(found.metadata["what_to_do"].value)
    assert evaluate(client, build_message_queue_defs(["emails"], max_dead_letters=1)).passed


def test_a_backlog_fails_only_where_it_is_limited(client: Client) -> None:
    for number in range(3):
        client.messages.publish("mail", {"n": number})
    client.messages.consume("emails", visibility=timedelta(seconds=30))

    assert evaluate(client, build_message_queue_defs(["emails"])).passed
    found = evaluate(client, build_message_queue_defs(["emails"], max_unfinished=2))
    assert not found.passed
    assert found.description == "3 unfinished messages, 2 allowed"
    assert (found.metadata["pending"].value, found.metadata["processing"].value) == (2, 1)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="max_unfinished is -1"):
        build_message_queue_defs(["emails"], max_unfinished=-1)


def test_what_is_scaffolded_passes_the_checks_and_works(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUE_URL", client.url)
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    for component, name in (("PgqueComponent", "pgque"), ("MessageQueueComponent", "emails")):
        project.run("scaffold", "defs", f"pgque_dagster.{component}", name)
    project.replace("pgque", "# url:", "url:")

    checked = project.run("check", "defs")

    assert "All definitions loaded successfully." in checked
    job = project.load().resolve_implicit_global_asset_job_def()
    (found,) = job.execute_in_process().get_asset_check_evaluations()
    assert found.passed
    give_up(client)
    (found,) = job.execute_in_process().get_asset_check_evaluations()
    assert found.description == "1 dead letters, 0 allowed"


def test_yaml_builds_the_same(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(client)
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    project.write(
        "emails",
        "type: pgque_dagster.MessageQueueComponent\nattributes: {queue: emails, severity: WARN}\n",
    )

    found = evaluate(client, project.load())

    assert not found.passed
    assert found.severity == dg.AssetCheckSeverity.WARN

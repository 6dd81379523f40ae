"""One sensor serves many consumers: evaluations are fast, and every consumer gets its turn."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import psycopg
import pytest

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from pgque_dagster.project.consumers import consumers_of
from pgque_dagster.sensors.batch_policy import BatchPolicy
from pgque_dagster.sensors.run_requests import BatchFinder
from tests.support.dagster.sensing import evaluate_from
from tests.support.queues.events import publish

POLICY = BatchPolicy(10, 3, timedelta(0), "hold", min_events=1)


def make_asset(name: str) -> dg.AssetsDefinition:
    @pgque_asset(queue="orders", name=name)
    def consumer(batch: SparkBatch) -> int:
        return batch.event_count

    return consumer


def key_of(request: dg.RunRequest) -> str:
    return request.tags["pgque/consumer"]


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    with Client(database_url) as client:
        client.create_queue("orders", ticker_max_lag="0")
        yield client


def register(client: Client, names: list[str]) -> list[dg.AssetsDefinition]:
    for name in names:
        client.register_consumer("orders", name)
    return [make_asset(name) for name in names]


def test_consumers_take_turns_at_being_first(client: Client, instance: dg.DagsterInstance) -> None:
    sensor = build_pgque_sensor(register(client, ["a", "b", "c"]))
    publish(client, ["x"])
    cursor: str | None = '{"version": 1, "first": "orders/c"}'  # of an earlier version
    asked = []
    for _ in range(4):
        found, cursor = evaluate_from(sensor, client.url, instance, cursor)
        assert not isinstance(found, str)
        asked.append("".join(map(key_of, found)))

    assert asked == ["abc", "bca", "cab", "abc"]


def test_an_evaluation_that_takes_too_long_goes_on_where_it_stopped(
    client: Client, instance: dg.DagsterInstance
) -> None:
    consumers = consumers_of(register(client, ["a", "b"]))
    publish(client, ["x"])
    finder = BatchFinder(instance, client, POLICY, time_limit=timedelta(0))

    findings = finder.find(consumers, first="orders/b")

    assert findings.requests == []
    assert findings.next_first == "orders/b"


def test_two_hundred_consumers_take_a_few_queries_when_nothing_is_due_and_get_their_runs_at_once(
    client: Client, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = consumers_of(register(client, [f"c{n:03}" for n in range(200)]))
    finder = BatchFinder(instance, client, POLICY)
    finder.find(consumers)  # records once to which asset each belongs
    statements: list[str] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: str, *args: Any, **options: Any) -> object:
        statements.append(query)
        return execute(self, query, *args, **options)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    findings = finder.find(consumers)

    assert len(findings.reasons) == 200
    assert len(statements) == 2  # their states, and what waits for them
    publish(client, ["x"])
    findings = finder.find(consumers)
    assert len({key_of(request) for request in findings.requests}) == 200

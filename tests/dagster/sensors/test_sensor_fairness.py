"""One sensor serves many consumers: evaluations are fast, and every consumer gets its turn."""

import json
from collections.abc import Iterator
from datetime import timedelta

import dagster as dg
import psycopg
import pytest

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client, Limits
from pgque_dagster.project.consumers import consumers_of
from pgque_dagster.sensors.attempts import AttemptPolicy
from pgque_dagster.sensors.cursor import SensorCursor
from pgque_dagster.sensors.run_requests import BatchPolicy, find_batches
from tests.support.events import publish
from tests.support.sensing import evaluate, evaluate_from, record_run, the_request


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


def test_consumers_take_turns_when_an_evaluation_may_start_few_runs(
    client: Client, instance: dg.DagsterInstance
) -> None:
    sensor = build_pgque_sensor(register(client, ["a", "b", "c"]), max_runs=1)
    publish(client, ["x"])
    cursor: str | None = None
    asked = []
    for _ in range(4):
        found, cursor = evaluate_from(sensor, client.url, instance, cursor)
        asked.append(key_of(the_request(found)))

    assert asked == ["a", "b", "c", "a"]


def test_a_consumer_with_several_batches_open_takes_one_turn_all_the_same(
    client: Client, instance: dg.DagsterInstance
) -> None:
    assets = register(client, ["a", "b"])
    sensor = build_pgque_sensor(assets, max_runs=1, parallel_runs=2, max_events=1)
    for text in ("x", "y"):
        publish(client, [text])
    cursor: str | None = None
    asked = []
    for _ in range(4):
        found, cursor = evaluate_from(sensor, client.url, instance, cursor)
        request = the_request(found)
        asset = assets[key_of(request) == "b"]
        record_run(instance, asset, client.url, request.tags, dg.DagsterRunStatus.NOT_STARTED)
        asked.append(key_of(request))

    assert asked == ["a", "b", "a", "b"]


def test_a_busy_consumer_does_not_use_up_the_turn_of_another(
    client: Client, instance: dg.DagsterInstance
) -> None:
    assets = register(client, ["a", "b"])
    sensor = build_pgque_sensor(assets, max_runs=1)
    publish(client, ["x"])
    first = the_request(evaluate(sensor, client.url, instance))
    record_run(instance, assets[0], client.url, first.tags, dg.DagsterRunStatus.NOT_STARTED)

    assert key_of(the_request(evaluate(sensor, client.url, instance))) == "b"


def test_an_evaluation_that_takes_too_long_goes_on_where_it_stopped(
    client: Client, instance: dg.DagsterInstance
) -> None:
    consumers = consumers_of(register(client, ["a", "b"]))
    publish(client, ["x"])
    policy = BatchPolicy(Limits(), AttemptPolicy(3, timedelta(0)))

    findings = find_batches(
        instance,
        client,
        consumers,
        policy,
        cursor=SensorCursor("orders/b"),
        time_limit=timedelta(0),
    )

    assert findings.requests == []
    assert findings.cursor == SensorCursor("orders/b")


def test_two_hundred_consumers_take_a_few_queries_when_nothing_is_due_and_get_their_runs_at_once(
    client: Client, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = consumers_of(register(client, [f"c{n:03}" for n in range(200)]))
    policy = BatchPolicy(Limits(min_count=1), AttemptPolicy(3, timedelta(0)))
    statements: list[str] = []
    execute = psycopg.Cursor.execute

    def counted(self: psycopg.Cursor[object], query: str, *args: object) -> object:
        statements.append(query)
        return execute(self, query, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    findings = find_batches(instance, client, consumers, policy, cursor=SensorCursor())

    assert len(findings.reasons) == 200
    assert len(statements) == 2  # their states, and what waits for them
    publish(client, ["x"])
    findings = find_batches(instance, client, consumers, policy, cursor=SensorCursor())
    assert len({key_of(request) for request in findings.requests}) == 200


def test_a_cursor_is_read_as_it_was_written_with_its_version() -> None:
    cursor = SensorCursor('orders/"revenue"')

    assert SensorCursor.read(cursor.write()) == cursor
    assert json.loads(cursor.write()) == {"version": 1, "first": 'orders/"revenue"'}


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "1717171717.5",
        "no JSON {",
        "[]",
        '"orders/revenue"',
        '{"first": "orders/revenue"}',
        '{"version": 99, "first": {"queue": "orders"}}',
        '{"version": 1, "first": 7}',
        '{"version": 1}',
    ],
)
def test_what_another_version_left_is_a_cursor_that_knows_nothing(text: str | None) -> None:
    assert SensorCursor.read(text) == SensorCursor()


@pytest.mark.parametrize(
    ("first", "names", "rotated"),
    [
        ("c", "abcd", "cdab"),
        (None, "ab", "ab"),
        ("removed", "ab", "ab"),
        ("a", "", ""),
    ],
)
def test_the_consumer_whose_turn_it_is_comes_first_and_those_before_it_last(
    first: str | None, names: str, rotated: str
) -> None:
    assert SensorCursor(first).rotate(list(names)) == list(rotated)

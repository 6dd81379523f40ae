"""Statistics and health on the command line."""

from collections.abc import Callable

import pytest
from click.testing import Result

from pgque_dagster.client import Client

Pgque = Callable[..., Result]


def test_stats_show_each_queue(pgque: Pgque, client: Client) -> None:
    client.send_batch("orders", ["a", "b", "c"])
    client.create_queue("quiet")

    lines = pgque("stats").output.splitlines()

    assert [line.split()[:2] for line in lines] == [
        ["queue", "depth"],
        ["orders", "3"],
        ["quiet", "0"],
    ]


def test_stats_without_queues_say_how_to_make_one(pgque: Pgque) -> None:
    assert "create-queue" in pgque("stats").output


def test_health_is_silent_about_what_is_well(pgque: Pgque, client: Client) -> None:
    result = pgque("health")

    assert (result.exit_code, result.output) == (0, "all 11 checks are well\n")


def test_health_shows_all_on_demand(pgque: Pgque, client: Client) -> None:
    assert "consumer_lag:billing" in pgque("health", "--all").output


@pytest.mark.parametrize(("age", "code"), [("3 minutes", 0), ("1 hour", 1)])
def test_health_fails_when_something_is_critical(
    pgque: Pgque, client: Client, age: str, code: int
) -> None:
    with client.transaction() as connection:
        connection.execute("update pgque.tick_log set tick_time = now() - %s::interval", [age])

    result = pgque("health")

    assert (result.exit_code, "ticker_running" in result.stdout) == (code, True)


def test_the_client_gives_metrics_with_their_labels(client: Client) -> None:
    client.send("orders", "a")
    found = {
        metric.value
        for metric in client.metrics()
        if metric.name == "pgque.message.sent_total" and metric.labels == {"queue": "orders"}
    }

    assert found == {1}


def test_the_client_gives_statistics(client: Client) -> None:
    client.send("orders", "a")
    (stats,) = client.queue_stats()

    assert (stats.queue, stats.depth, stats.consumers, stats.dead_letters) == ("orders", 1, 1, 0)

"""Making, dropping and listing queues and consumers."""

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from pgque_dagster.cli import main
from pgque_dagster.client import Client

Pgque = Callable[..., Result]
Refused = Callable[..., str]


def test_create_queue_tells_a_new_one_from_one_that_existed(pgque: Pgque) -> None:
    assert pgque("create-queue", "orders").output == "created queue orders\n"
    assert pgque("create-queue", "orders").output == "queue orders existed\n"


def test_create_queue_takes_settings(pgque: Pgque, client: Client) -> None:
    result = pgque("create-queue", "fast", "--set", "ticker_max_lag=1 second")

    assert result.exit_code == 0
    with client.transaction() as connection:
        lag = connection.execute(
            "select queue_ticker_max_lag::text from pgque.get_queue_info('fast')"
        ).fetchone()
    assert lag == ("00:00:01",)


def test_a_wrong_setting_creates_no_queue(refused: Refused, client: Client) -> None:
    assert "ticker_max_lag" in refused("create-queue", "slow", "--set", "ticker_max_lag=soon")

    assert [queue.name for queue in client.queues()] == ["orders"]


@pytest.mark.parametrize("name", ["", "q" * 58, "ü" * 29])
def test_a_queue_name_of_wrong_length_is_refused(refused: Refused, name: str) -> None:
    assert "1 to 57 bytes" in refused("create-queue", name)


def test_a_queue_with_consumers_is_dropped_only_by_force(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    assert "--force" in refused("drop-queue", "orders")

    assert pgque("drop-queue", "orders", "--force").output == "dropped queue orders\n"
    assert client.queues() == []


def test_register_and_unregister_a_consumer(pgque: Pgque, client: Client) -> None:
    assert pgque("register", "orders", "stock").output == "registered consumer stock on orders\n"
    assert "already" in pgque("register", "orders", "stock").output
    assert pgque("unregister", "orders", "stock").exit_code == 0

    assert [consumer.name for consumer in client.consumers("orders")] == ["billing"]


def publish(client: Client, payload: str) -> None:
    client.send("orders", payload)
    client.force_next_tick("orders")
    client.ticker()


def test_a_consumer_is_registered_where_the_option_says(pgque: Pgque, client: Client) -> None:
    publish(client, "a")
    for position, events in (("earliest", 1), ("latest", 0), ("2001-01-01", 1), ("1", 1)):
        pgque("register", "orders", position, "--start-at", position)
        (info,) = (each for each in client.consumers("orders") if each.name == position)
        assert info.pending_events == events


def test_seek_tells_where_the_consumer_stands_and_how_many_events_come_again(
    pgque: Pgque, client: Client
) -> None:
    publish(client, "a")
    client.seek("orders", "billing", "latest", skip=True)

    assert pgque("seek", "orders", "billing", "earliest").output == (
        "consumer billing on orders stands at tick 1: 0 events are passed over, 1 come again\n"
    )


def test_seek_passes_over_events_only_if_told_so(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    publish(client, "a")

    line = refused("seek", "orders", "billing", "latest")
    assert "would pass over 1 events" in line
    assert "--yes" in line

    assert (
        "1 events are passed over" in pgque("seek", "orders", "billing", "latest", "--yes").output
    )


def test_seek_refuses_a_position_that_is_none_or_gone(
    pgque: Pgque, refused: Refused, client: Client
) -> None:
    assert "no position" in pgque("seek", "orders", "billing", "soon").stderr
    assert "Ticks 1 to 1 are retained" in refused("seek", "orders", "billing", "999")
    publish(client, "a")
    client.claim("orders", "billing", owner="me")
    assert "has batch" in refused("seek", "orders", "billing", "earliest")


def test_assign_moves_a_consumer_to_a_deployment(pgque: Pgque, client: Client) -> None:
    first = pgque("assign", "orders", "billing", "production").output
    second = pgque("assign", "orders", "billing", "laptop").output

    assert first == "consumer billing on orders belongs to deployment production\n"
    assert second == (
        "consumer billing on orders belongs to deployment laptop, moved from production\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("drop-queue", "nope"),
        ("register", "nope", "billing"),
        ("unregister", "nope", "billing"),
        ("assign", "nope", "billing", "laptop"),
        ("seek", "nope", "billing", "earliest"),
        ("consumers", "nope"),
        ("send", "nope", "{}"),
        ("dead-letters", "list", "nope"),
        ("dead-letters", "replay", "nope"),
        ("dead-letters", "purge", "nope"),
    ],
)
def test_an_unknown_queue_is_named_in_one_line(refused: Refused, arguments: tuple[str]) -> None:
    line = refused(*arguments)

    assert '"nope"' in line
    assert "pgque create-queue" in line


@pytest.mark.usefixtures("client")
def test_an_unknown_consumer_is_named_in_one_line(refused: Refused) -> None:
    line = refused("unregister", "orders", "nope")

    assert '"nope"' in line
    assert "pgque register" in line


def test_empty_lists_say_what_to_do(pgque: Pgque) -> None:
    output = pgque("status").output

    assert "pgque create-queue" in output
    assert "pgque register" in output
    assert "no dead letters" in output


def test_status_shows_queues_consumers_and_dead_letters(pgque: Pgque, client: Client) -> None:
    client.send("orders", "{}")
    client.force_next_tick("orders")
    client.ticker()
    batch = client.claim("orders", "billing", owner="test")
    assert batch is not None
    batch.dead_letter([event.msg_id for event in batch.events()], reason="no total")
    batch.ack()

    output = pgque("status").output

    assert [line.split()[:2] for line in output.splitlines()] == [
        ["component", "status"],
        ["postgresql", "ok"],
        ["pgque", "ok"],
        ["scheduler", "none"],
        ["ticks", "ok"],
        ["queues", "ok"],
        [],
        ["queue", "kind"],
        ["orders", "events"],
        [],
        ["queue", "consumer"],
        ["orders", "billing"],
        [],
        ["queue", "consumer"],
        ["orders", "billing"],
    ]
    assert "no total" in output


def test_status_shows_a_reader_all_but_the_scheduler(client: Client, database_url: str) -> None:
    reader = {"PGQUE_URL": f"{database_url}&options=-crole%3Dpgque_reader"}

    output = CliRunner().invoke(main, ["status"], env=reader).output

    assert "pgque_admin only" in output
    assert "orders" in output


def test_names_cannot_steer_the_terminal(pgque: Pgque) -> None:
    pgque("create-queue", "red\x1b[31m")

    output = pgque("queues").output

    assert "\x1b" not in output
    assert r"red\x1b[31m" in output


@pytest.mark.parametrize("command", ["register {} c", "consumers {}", "tail {}", "send {} 1"])
@pytest.mark.parametrize(
    ("queue", "call"),
    [
        (
            "postgremq.tea",
            "Log the topic: select postgremq.log_topic('tea'); or, to publish to it without a log: "
            "select postgremq.unlog_topic('tea');",
        ),
        (
            "qgres.tea",
            "Log the serial queue: select qgres.log_queue('tea'); or, to publish to it without a "
            "log: select qgres.unlog_queue('tea');",
        ),
    ],
)
def test_a_queue_that_is_not_logged_is_not_to_be_created(
    refused: Refused, command: str, queue: str, call: str
) -> None:
    message = refused(*command.format(queue).split())
    assert f'queue "{queue}" does not exist' in message
    assert call in message
    assert "create-queue" not in message

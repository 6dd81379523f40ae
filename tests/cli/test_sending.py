"""`pgque send`: one payload, or the lines of standard input."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from pgque_dagster.client import Client

Pgque = Callable[..., Result]
Refused = Callable[..., str]


def sent(client: Client) -> list[tuple[str | None, str | None]]:
    """What a consumer gets: type and payload of each event."""
    client.force_next_tick("orders")
    client.ticker()
    batch = client.claim("orders", "billing", owner="test")
    assert batch is not None
    return [(event.type, event.payload) for event in batch.events()]


def test_a_payload_arrives_as_it_was_written(pgque: Pgque, client: Client) -> None:
    result = pgque("send", "orders", '{"b":1,  "a":1.50}', "--type", "order")

    assert result.output == "sent event 1 to orders\n"
    assert sent(client) == [("order", '{"b":1,  "a":1.50}')]


@pytest.mark.parametrize("payload", ['{"id": ', "", "NaN", "{'id': 1}", "[" * 100_000, "free text"])
def test_a_malformed_payload_is_refused_and_not_sent(
    refused: Refused, client: Client, payload: str
) -> None:
    assert "is not JSON" in refused("send", "orders", payload)

    assert sent(client) == []


def test_text_goes_when_asked_for(pgque: Pgque, client: Client) -> None:
    pgque("send", "orders", "free text", "--text")

    assert sent(client) == [("default", "free text")]


def test_lines_are_sent_in_order_over_several_batches(pgque: Pgque, client: Client) -> None:
    lines = "".join(f'{{"id": {number}}}\n' for number in range(25))

    result = pgque("send", "orders", "-", "--batch-size", "10", stdin=lines)

    assert result.output == "events sent to orders: 25\n"
    assert [payload for _, payload in sent(client)] == lines.splitlines()


def test_blank_lines_are_skipped(pgque: Pgque, client: Client) -> None:
    pgque("send", "orders", "-", stdin="1\r\n\n  \n2")

    assert [payload for _, payload in sent(client)] == ["1", "2"]


def test_a_malformed_line_is_named_and_its_batch_is_not_sent(
    refused: Refused, client: Client
) -> None:
    line = refused("send", "orders", "-", "--batch-size", "2", stdin='1\n2\n3\n{"id"\n5\n')

    assert "line 4 is not JSON" in line
    assert "2 events are sent, go on with --from-line 3" in line
    assert [payload for _, payload in sent(client)] == ["1", "2"]


@pytest.mark.parametrize(("line", "why"), [(b'"\xff"\n', "UTF-8"), (b"a\0b\n", "zero byte")])
@pytest.mark.usefixtures("client")
def test_lines_that_postgres_cannot_store_are_refused(
    refused: Refused, line: bytes, why: str
) -> None:
    assert why in refused("send", "orders", "-", "--text", stdin=line)


def test_the_error_of_a_missing_queue_names_near_ones_and_says_who_makes_it(
    refused: Refused, client: Client
) -> None:
    client.create_queue("events")

    line = refused("send", "order", "{}")

    assert '"order"' in line
    assert "Did you mean orders?" in line
    assert "events" not in line
    assert "when its sensor first runs" in line
    assert "--wait 60s" in line
    assert "`pgque create-queue order`" in line


def test_a_queue_that_comes_late_is_waited_for(pgque: Pgque, client: Client) -> None:
    maker = threading.Timer(3.0, client.create_queue, ["late"])
    maker.start()

    result = pgque("send", "late", "{}", "--wait", "60s")

    maker.join()
    assert result.stdout == "sent event 1 to late\n"
    assert "waiting for queue late" in result.stderr


def test_a_queue_that_does_not_come_is_missing_after_the_wait(
    refused: Refused, client: Client
) -> None:
    assert "never" in refused("send", "never", "{}", "--wait", "0s")


def test_standard_input_is_not_read_while_the_queue_is_waited_for(
    pgque: Pgque, client: Client
) -> None:
    maker = threading.Timer(1.0, client.create_queue, ["late"])
    maker.start()

    result = pgque("send", "late", "-", "--wait", "60s", stdin="1\n2\n")

    maker.join()
    assert result.stdout == "events sent to late: 2\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(f'{{"id": {n}}}\n' for n in range(16)) + '{"id"\n{"id": 17}\n')
    return path


def test_a_malformed_line_of_a_file_keeps_all_of_it_from_being_sent(
    refused: Refused, client: Client, file: Path
) -> None:
    assert "line 17 is not JSON" in refused("send", "orders", "--file", str(file))

    assert client.queues()[0].new_events == 0


def test_the_other_lines_are_sent_on_demand(pgque: Pgque, client: Client, file: Path) -> None:
    result = pgque("send", "orders", "--file", str(file), "--skip-malformed")

    assert result.exit_code == 1
    assert "line 17 is not JSON" in result.stderr
    assert "events sent to orders: 17" in result.stdout
    assert len(sent(client)) == 17


def test_sending_goes_on_after_a_line(pgque: Pgque, client: Client, file: Path) -> None:
    pgque("send", "orders", "--file", str(file), "--from-line", "18")

    assert sent(client) == [("default", '{"id": 17}')]


def test_a_pipe_is_not_read_as_a_file(refused: Refused, client: Client, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # A writer, so that opening the pipe does not wait.
    writer = os.open(pipe, os.O_RDWR)
    try:
        assert "send QUEUE -" in refused("send", "orders", "--file", str(pipe))
    finally:
        os.close(writer)


def test_a_closed_standard_input_is_an_error_of_one_line(database_url: str, client: Client) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pgque_dagster.cli", "send", "orders", "-"],
        env={**os.environ, "PGQUE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.close(0),
    )

    assert (done.returncode, "standard input is closed" in done.stderr) == (1, True)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [(), ("{}", "--file", __file__), ("{}", "--skip-malformed"), ("-", "--at", "1h")]
)
def test_arguments_that_contradict_each_other_are_refused(
    pgque: Pgque, client: Client, arguments: tuple[str, ...]
) -> None:
    assert pgque("send", "orders", *arguments).exit_code == 2

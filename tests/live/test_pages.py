"""What Dagster's UI shows of queues and batches, in Chromium."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from pgque_dagster.client import Client
from tests.support.browser import Browser
from tests.support.events import tick
from tests.support.live import Live
from tests.support.live_project import CHECK_JOB, QUEUE


@pytest.fixture
def dead_letters(live: Live) -> None:
    """An event that neither consumer can read, given up by both, and the check's result on it."""
    with Client(live.url) as client:
        if not client.dead_letter_counts(QUEUE):
            client.send_batch(QUEUE, ['{"event": "healthy", "amount": 1}', "no JSON"])
            tick(client, QUEUE)
    live.wait_until_consumed()
    live.dagster.run_job(CHECK_JOB)


@pytest.mark.usefixtures("dead_letters")
def test_the_lineage_shows_queue_dead_letters_and_consumers(
    live: Live, browser: Browser, tmp_path: Path
) -> None:
    browser.open(
        f"{live.dagster.url}/assets/pgque/orders_queue?view=lineage&lineageScope=downstream"
        "&lineageDepth=5"
    )

    browser.wait_for("orders_queue", "orders_dlq", "order_lines", "order_totals", "0 / 1 Passed")
    browser.take_picture(tmp_path / "lineage.png")


@pytest.mark.usefixtures("dead_letters")
def test_a_check_that_fails_is_red_until_its_dead_letters_are_purged(
    live: Live, browser: Browser, tmp_path: Path
) -> None:
    page = f"{live.dagster.url}/assets/pgque/orders_dlq?view=checks"
    browser.open(page)
    browser.wait_for("Evaluation result", "Failed", "malformed payload")
    assert any(map(is_red, browser.colours_of("Failed")))
    browser.take_picture(tmp_path / "check.png")

    with Client(live.url) as client:
        client.purge_dead_letters(QUEUE, timedelta())
    live.dagster.run_job(CHECK_JOB)
    browser.open(page)
    browser.wait_for("Evaluation result", "Passed")
    assert not any(map(is_red, browser.colours_of("Passed")))


def test_the_numbers_of_batches_are_plotted(live: Live, browser: Browser, tmp_path: Path) -> None:
    for number in range(1, 3):
        live.publish(f"plotted {number}", 50 * number)
        live.wait_until_consumed()

    browser.open(f"{live.dagster.url}/assets/order_lines?view=overview")
    browser.wait_for("Plots")
    browser.click("Plots")
    browser.wait_for("pgque/rows", "pgque/events", "pgque/lag_seconds", "pgque/ack_seconds")

    assert browser.evaluate("document.querySelectorAll('canvas').length") > 3
    browser.evaluate("document.querySelector('canvas').scrollIntoView({block: 'center'})")
    browser.take_picture(tmp_path / "plots.png")


def is_red(colour: str) -> bool:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return red > green + blue

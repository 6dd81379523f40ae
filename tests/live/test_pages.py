"""What Dagster's UI shows of queues and batches, in Chromium."""

import re
from datetime import timedelta

from pgque_dagster.client import Client
from tests.support.browser import Browser
from tests.support.events import tick
from tests.support.live import Live
from tests.support.live_project import CHECK_JOB, QUEUE


def test_the_lineage_and_the_check_show_dead_letters_until_they_are_purged(
    live: Live, browser: Browser
) -> None:
    with Client(live.url) as client:
        client.send_batch(QUEUE, ['{"event": "healthy", "amount": 1}', "no JSON"])
        tick(client, QUEUE)
    live.wait_until_consumed()
    live.dagster.run_job(CHECK_JOB)

    pages = f"{live.dagster.url}/assets/pgque"
    lineage = "view=lineage&lineageScope=downstream&lineageDepth=5"
    browser.open(f"{pages}/orders_queue?{lineage}")
    browser.wait_for("orders_queue", "orders_dlq", "order_lines", "order_totals", "0 / 1 Passed")
    browser.open(f"{pages}/orders_dlq?view=checks")
    browser.wait_for("Evaluation result", "Failed", "malformed payload")
    assert any(map(is_red, browser.colours_of("Failed")))

    with Client(live.url) as client:
        client.purge_dead_letters(QUEUE, timedelta())
    live.dagster.run_job(CHECK_JOB)
    browser.open(f"{pages}/orders_dlq?view=checks")
    browser.wait_for("Evaluation result", "Passed")
    assert not any(map(is_red, browser.colours_of("Passed")))


def is_red(colour: str) -> bool:
    red, green, blue = map(int, re.findall(r"\d+", colour)[:3])
    return red > green + blue

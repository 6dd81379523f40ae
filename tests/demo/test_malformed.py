"""The demo's malformed events, where no posting is beside them."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from demo.bank import MALFORMED, QUEUE
from demo.books import LEDGERS
from demo.definitions import defs
from pgque_dagster.client import Client
from tests.support.events import publish


def test_malformed_events_become_dead_letters_even_where_no_posting_is_beside_them(
    database_url: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUE_URL", database_url)
    monkeypatch.setenv("PGQUE_DEMO_OUTPUT", str(tmp_path))
    job = defs().resolve_implicit_global_asset_job_def()

    with Client(database_url) as client:
        registered = job.execute_in_process()
        client.configure_queue(QUEUE, ticker_max_lag="0")
        publish(client, MALFORMED, queue=QUEUE)
        consumed = job.execute_in_process()
        given_up = sum(count.count for count in client.dead_letter_counts(QUEUE))

    assert registered.success and consumed.success
    assert given_up == len(MALFORMED) * len(LEDGERS)

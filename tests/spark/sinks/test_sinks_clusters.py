"""Executors that are killed, or tasks that run twice, while they fill a sink: rows count once."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pgque_dagster.client import Client
from tests.conftest import Server
from tests.support.clusters import LOCAL_CLUSTER, SPECULATION, run_driver, standalone
from tests.support.databases import empty_database
from tests.support.events import publish
from tests.support.queues import connect, rows
from tests.support.s3 import S3
from tests.support.stored_tables import iceberg_catalog, rows_by_manifests

EVENTS = 5_000
LAKE = ("delta", "delta_s3", "iceberg", "iceberg_s3")
# A row that came twice would be there twice: there is no key that refuses it.
TAKEN = "create table taken (ev_id bigint)"


def taken(url: str) -> list[int]:
    with connect(url) as db:
        return [number for (number,) in rows(db, "select ev_id from taken order by 1")]


def numbers(client: Client, s3: S3, folder: Path, table: str) -> list[int]:
    """The rows of a Delta or Iceberg table, as somebody reads them who has only their libraries."""
    if table == "delta":
        rows = DeltaTable(folder / "delta").to_pyarrow_table()
    elif table == "delta_s3":
        options = {**s3.options, "aws_allow_http": "true"}
        location = s3.url(f"{folder.name}-delta")
        rows = DeltaTable(location, storage_options=options).to_pyarrow_table()
    else:
        name = "a.disk" if table == "iceberg" else "a.s3"
        catalog = iceberg_catalog(client.url, **s3.iceberg_properties)
        rows = catalog.load_table(name).scan().to_arrow()
    return sorted(rows["ev_id"].to_pylist())


@pytest.fixture
def elsewhere(client: Client, server: Server) -> Iterator[str]:
    """Another database, which has the table as well."""
    with empty_database(server) as other:
        for url in (client.url, other):
            with connect(url) as db:
                db.execute(TAKEN.encode())
        yield other


def check_sinks(
    client: Client, s3: S3, folder: Path, elsewhere: str, master: str, story: str, **conf: Any
) -> None:
    ids = client.send_batch("orders", ["{}"] * EVENTS)
    publish(client, [])
    places = {"elsewhere": elsewhere, "s3": s3.url(folder.name), "s3_options": s3.options}
    (folder / "places.json").write_text(json.dumps(places))

    report = run_driver(master, story, client.url, folder, **conf)

    disturbed = sorted(path.name.partition("-")[2] for path in folder.glob("disturbed-*"))
    assert disturbed == sorted(("elsewhere", "files", "here", "objects", *LAKE))
    assert taken(client.url) == ids
    assert taken(elsewhere) == ids
    assert report["files"] == ids
    assert report["objects"] == ids
    assert [number for (number,) in rows_by_manifests(s3, folder.name)] == ids
    assert {table: numbers(client, s3, folder, table) for table in LAKE} == dict.fromkeys(LAKE, ids)
    assert client.next_batch("orders", "revenue") is None


@pytest.mark.slow
def test_executors_killed_while_they_fill_a_sink_double_and_lose_nothing(
    client: Client, s3: S3, tmp_path: Path, elsewhere: str
) -> None:
    check_sinks(client, s3, tmp_path, elsewhere, LOCAL_CLUSTER, "lose_executors_of_sinks")


@pytest.mark.slow
def test_a_task_that_spark_runs_twice_while_it_fills_a_sink_counts_once(
    client: Client, s3: S3, tmp_path: Path, elsewhere: str
) -> None:
    with standalone(tmp_path) as master:
        check_sinks(client, s3, tmp_path, elsewhere, master, "speculate_in_sinks", conf=SPECULATION)

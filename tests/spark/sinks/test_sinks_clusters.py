"""Executors that are killed while they fill a sink: each row counts once."""

from pathlib import Path

import pytest

from pgque_dagster.client import Client
from tests.conftest import Server
from tests.support.clusters import LOCAL_CLUSTER, run_driver
from tests.support.databases import empty_database
from tests.support.events import publish
from tests.support.queues import connect, rows

EVENTS = 5_000
# A row that came twice would be there twice: there is no key that refuses it.
TAKEN = "create table taken (ev_id bigint)"


def taken(url: str) -> list[int]:
    with connect(url) as db:
        return [number for (number,) in rows(db, "select ev_id from taken order by 1")]


@pytest.mark.slow
def test_executors_killed_while_they_fill_a_sink_double_and_lose_nothing(
    client: Client, server: Server, tmp_path: Path
) -> None:
    ids = client.send_batch("orders", ["{}"] * EVENTS)
    publish(client, [])
    with empty_database(server) as elsewhere:
        for url in (client.url, elsewhere):
            with connect(url) as db:
                db.execute(TAKEN.encode())
        (tmp_path / "elsewhere").write_text(elsewhere)

        report = run_driver(LOCAL_CLUSTER, "lose_executors_of_sinks", client.url, tmp_path)

        killed = sorted(path.name for path in tmp_path.glob("killed-*"))
        assert killed == ["killed-elsewhere", "killed-files", "killed-here"]
        assert taken(client.url) == ids
        assert taken(elsewhere) == ids
        assert report["files"] == ids
    assert client.next_batch("orders", "revenue") is None

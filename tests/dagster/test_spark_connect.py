"""Assets whose Spark session is one of a Spark Connect server."""

from pathlib import Path

import pytest

from pgque_dagster.client import Client
from tests.support.clusters import connect_server, run_driver
from tests.support.events import publish


@pytest.mark.slow
def test_the_resource_of_dagster_pyspark_may_name_a_connect_server(
    client: Client, tmp_path: Path
) -> None:
    publish(client, ['{"total": 1.5}', '{"total": 2.5}'])

    with connect_server(tmp_path) as master:
        report = run_driver(master, "sum_up", client.url, tmp_path, module="connect_driver")

    assert (report["success"], report["sums"]) == (True, [4.0])
    assert report["sessions"] == ["pyspark.sql.connect.session"]
    (revenue,) = client.consumers("orders")
    assert (revenue.batch_id, revenue.pending_events) == (None, 0)

"""docs/payloads.md holds on a Spark Connect server: for batches and streams."""

import json
from pathlib import Path

import pytest

from pgque_dagster.client import Client
from tests.spark.payload.payload_batches import SCHEMA_NAMES, SCHEMAS
from tests.support.clusters import connect_server, run_driver
from tests.support.events import make_queue, publish
from tests.support.payload_driver import WAYS


@pytest.mark.slow
def test_batches_and_streams_are_read_as_the_corpus_says(database_url: str, tmp_path: Path) -> None:
    with Client(database_url) as client:
        for queue, (_, some) in zip(SCHEMA_NAMES, SCHEMAS, strict=True):
            for way in WAYS:
                make_queue(client, queue, way)
            ids = publish(client, [case.payload for case in some], queue)
            (tmp_path / f"{queue}.json").write_text(json.dumps(ids))

    with connect_server(tmp_path) as master:
        report = run_driver(master, "read_corpus", database_url, tmp_path, module="payload_driver")

    assert report == {
        f"{queue} {way}": [len(some), []]
        for queue, (_, some) in zip(SCHEMA_NAMES, SCHEMAS, strict=True)
        for way in WAYS
    }

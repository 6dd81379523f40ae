"""The same on every Spark: each event once, whoever reads it, and whoever dies meanwhile."""

import json
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgque_dagster.client import Client
from pgque_dagster.spark import batch as batch_module
from tests.conftest import Server
from tests.programs import spark_cluster
from tests.support.queues.events import claim, make_queue, tick
from tests.support.queues.sql import connect, rows, value
from tests.support.servers.databases import empty_database
from tests.support.servers.s3 import s3_server
from tests.support.spark.clusters import (
    LOCAL_CLUSTER,
    ROOT,
    SPECULATION,
    bare_environment,
    connect_server,
    run_driver,
    standalone,
)
from tests.support.spark.stored_tables import iceberg_catalog

EVENTS = 3_000


@dataclass(frozen=True)
class Shop:
    """A database whose queue orders holds a batch for the consumers revenue and stream."""

    client: Client
    ids: list[int]
    totals: Counter[str]

    @property
    def url(self) -> str:
        return self.client.url


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    totals: Counter[str] = Counter()
    payloads = []
    for number in range(EVENTS):
        account = f"account {number % 3}"
        totals[account] += number
        payloads.append(json.dumps({"account": account, "amount": number}))
    with Client(database_url) as client, connect(database_url) as db:
        make_queue(client)
        client.register_consumer("orders", "stream")
        make_queue(client, "published", "books")
        db.execute("create table balance (account text primary key, amount bigint not null)")
        ids = client.send_batch("orders", payloads)
        ids.append(client.send("orders", "no JSON"))
        tick(client)
        yield Shop(client, ids, totals)


def published(client: Client) -> list[int]:
    """The numbers that were written to the queue of that name."""
    tick(client, "published")
    events = claim(client, "published", "books").events()
    return sorted(int(event.payload or "") for event in events)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "executors"),
    [(None, 1), (connect_server, 1), (standalone, 2)],
    ids=["local", "connect", "standalone"],
)
def test_each_event_counts_once_wherever_spark_runs(
    shop: Shop,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: Any,
    executors: int,
) -> None:
    if cluster is None:
        monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)
        report = spark_cluster.consume(spark, shop.url, tmp_path)
    else:
        with cluster(tmp_path) as master:
            report = run_driver(master, "consume", shop.url, tmp_path)

    assert report["ids"] == shop.ids
    assert report["streamed"] == shop.ids
    assert report["executors"] == executors
    assert report["stored"] == shop.totals
    with connect(shop.url) as db:
        assert Counter(dict(rows(db, "select account, amount::int from balance"))) == shop.totals
        retried = sum(event_id % 1000 == 0 for event_id in shop.ids)
        assert value(db, "select count(*) from pgque.retry_queue") == retried > 0
    assert published(shop.client) == list(range(EVENTS))
    assert [dead.count for dead in shop.client.dead_letter_counts("orders")] == [1]


@pytest.mark.slow
def test_executors_that_are_killed_midway_change_nothing(shop: Shop, tmp_path: Path) -> None:
    report = run_driver(LOCAL_CLUSTER, "lose_executors", shop.url, tmp_path)

    killed = [path.name for path in sorted(tmp_path.glob("*ing"))]
    assert killed == ["reading", "streaming", "writing"]
    assert report["ids"] == shop.ids
    assert report["streamed"] == shop.ids
    assert published(shop.client) == shop.ids


@pytest.mark.slow
@pytest.mark.parametrize("name", ["standalone", "connect"])
def test_executors_without_the_package_say_so_until_it_is_shipped(
    shop: Shop, tmp_path: Path, name: str
) -> None:
    bare_environment(tmp_path / "bare")
    env = {"PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python")}
    with (
        standalone(tmp_path) if name == "standalone" else connect_server(tmp_path, env=env)
    ) as master:
        report = run_driver(master, "count", shop.url, tmp_path, env=env)

    assert report["told"].startswith("PackageMissing: the Python of Spark's executors has no")
    assert "ship it with pgque_dagster.spark.ship(spark)" in report["told"]
    assert report["events"] == len(shop.ids)


@pytest.mark.slow
def test_an_archive_brings_executors_a_python_with_the_package(shop: Shop, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    # Spark brings PySpark by itself.
    site_packages = bare_environment(environment, without=("pgque", "pyspark", "py4j"))
    shutil.copytree(ROOT / "pgque_dagster", site_packages / "pgque_dagster")
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz") as archive:
        archive.add(environment, ".")

    with standalone(tmp_path) as master:
        report = run_driver(
            master,
            "count",
            shop.url,
            tmp_path,
            conf={"spark.archives": f"{tmp_path}/environment.tar.gz#environment"},
            env={"PYSPARK_PYTHON": "./environment/bin/python"},
        )

    assert report == {"told": None, "events": len(shop.ids)}


@pytest.mark.slow
@pytest.mark.parametrize("disturbed_by", ["killed executors", "speculation"])
def test_rows_count_once_in_every_sink_whatever_happens_to_executors(
    client: Client, server: Server, tmp_path: Path, disturbed_by: str
) -> None:
    make_queue(client, "published", "books")
    ids = client.send_batch("orders", ["{}"] * 5_000)
    tick(client)
    with ExitStack() as stack:
        s3 = stack.enter_context(s3_server())
        elsewhere = stack.enter_context(empty_database(server))
        databases = [stack.enter_context(connect(url)) for url in (client.url, elsewhere)]
        for db in databases:
            # A row that came twice would be there twice: there is no key that refuses it.
            db.execute("create table taken (ev_id bigint)")
        places = {"elsewhere": elsewhere, "s3": s3.url("table"), "s3_options": s3.options}
        (tmp_path / "places.json").write_text(json.dumps(places))

        if disturbed_by == "speculation":
            master = stack.enter_context(standalone(tmp_path))
            report = run_driver(master, "fill_sinks", client.url, tmp_path, conf=SPECULATION)
        else:
            report = run_driver(LOCAL_CLUSTER, "fill_sinks", client.url, tmp_path)

        assert client.next_batch("orders", "revenue") is None
        disturbed = sorted(path.name.partition("-")[2] for path in tmp_path.glob("disturbed-*"))
        assert disturbed == [
            *("delta", "elsewhere", "files", "here", "iceberg", "objects", "queue")
        ]
        assert published(client) == ids
        for db in databases:
            assert [number for (number,) in rows(db, "select * from taken order by 1")] == ids
        assert report == {"files": ids}
        iceberg = iceberg_catalog(client.url).load_table("a.table").scan().to_arrow()
        options = {**s3.options, "aws_allow_http": "true"}
        objects = DeltaTable(s3.url("table"), storage_options=options)
        for table in (
            DeltaTable(tmp_path / "delta").to_pyarrow_table(),
            objects.to_pyarrow_table(),
            iceberg,
        ):
            assert sorted(table["ev_id"].to_pylist()) == ids

"""The same on every Spark: each event once, whoever reads it, and whoever dies meanwhile."""

import json
import shutil
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgque_dagster.client import Batch, BatchLeased, Client
from pgque_dagster.spark import batch as batch_module
from tests.support import cluster_driver
from tests.support.clusters import (
    LOCAL_CLUSTER,
    PATIENCE_SECONDS,
    ROOT,
    SPECULATION,
    bare_environment,
    connect_server,
    driver,
    run_driver,
    standalone,
)
from tests.support.events import claim, make_queue, tick
from tests.support.queues import connect, rows, value

# More than the driver reads by itself.
EVENTS = batch_module.DRIVER_SIDE_EVENTS + 5_000


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
    return sorted(
        int(event.payload or "") for event in claim(client, "published", "books").events()
    )


def retries(url: str) -> int:
    with connect(url) as db:
        return int(value(db, "select count(*) from pgque.retry_queue"))


@contextmanager
def cluster(name: str, folder: Path) -> Iterator[str]:
    """The master's URL, or a Connect server's."""
    if name == "standalone":
        with standalone(folder) as url:
            yield url
    elif name == "connect":
        with connect_server(folder) as url:
            yield url
    else:
        yield LOCAL_CLUSTER


@pytest.mark.parametrize(
    ("name", "executors"),
    [
        ("local", 1),
        ("connect", 1),
        pytest.param("local-cluster", 2, marks=pytest.mark.slow),
        pytest.param("standalone", 2, marks=pytest.mark.slow),
    ],
)
def test_each_event_counts_once_wherever_spark_runs(
    shop: Shop, tmp_path: Path, request: pytest.FixtureRequest, name: str, executors: int
) -> None:
    if name == "local":
        session: SparkSession = request.getfixturevalue("spark")
        report = cluster_driver.consume(session, shop.url, tmp_path)
    else:
        with cluster(name, tmp_path) as master:
            report = run_driver(master, "consume", shop.url, tmp_path)

    assert report["ids"] == shop.ids
    assert report["streamed"] == shop.ids
    assert report["executors"] == executors
    assert report["stored"] == shop.totals
    with connect(shop.url) as db:
        assert Counter(dict(rows(db, "select account, amount::int from balance"))) == shop.totals
    assert published(shop.client) == list(range(EVENTS))
    assert retries(shop.url) == sum(event_id % 1000 == 0 for event_id in shop.ids)
    assert [dead.count for dead in shop.client.dead_letter_counts("orders")] == [1]


def test_executors_that_are_killed_midway_change_nothing(shop: Shop, tmp_path: Path) -> None:
    report = run_driver(LOCAL_CLUSTER, "lose_executors", shop.url, tmp_path)

    killed = [path.name for path in sorted(tmp_path.glob("*ing"))]
    assert killed == ["reading", "streaming", "writing"]
    assert report["ids"] == shop.ids
    assert report["streamed"] == shop.ids
    assert published(shop.client) == shop.ids


@pytest.mark.slow
def test_a_task_that_spark_runs_twice_counts_once(shop: Shop, tmp_path: Path) -> None:
    with standalone(tmp_path) as master:
        report = run_driver(master, "speculate", shop.url, tmp_path, conf=SPECULATION)

    assert [path.name for path in sorted(tmp_path.glob("*ing"))] == ["reading", "writing"]
    assert report["ids"] == shop.ids
    assert published(shop.client) == shop.ids


@pytest.mark.slow
@pytest.mark.parametrize("story", ["hang_reading", "hang_writing"])
def test_a_driver_killed_midway_leaves_its_batch_to_the_next(
    shop: Shop, tmp_path: Path, story: str
) -> None:
    with driver(LOCAL_CLUSTER, story, shop.url, tmp_path) as process:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (tmp_path / "hangs").exists():
            assert process.poll() is None and time.monotonic() < deadline, "it never got there"
            time.sleep(0.1)

    assert [event.msg_id for event in claim_after_lease(shop.client).events()] == shop.ids
    assert published(shop.client) == []


def claim_after_lease(client: Client) -> Batch:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return claim(client)
        except BatchLeased:
            assert time.monotonic() < deadline, "the lease does not end"
            time.sleep(0.2)


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

"""A topic and a serial queue are read by Dagster, Spark and streams like any queue."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import PgqueResource, SparkBatch, installer, pgque_asset
from pgque_dagster.client import AddonMissing, InvalidArgument, PermissionDenied, QueueNotFound
from pgque_dagster.spark import register
from tests.dagster.support import StoringIOManager, materialize
from tests.support.databases import empty_database
from tests.support.dg_project import DgProject
from tests.support.logins import as_login
from tests.support.queues import Connection, connect, drain, stored_payloads, tick, value
from tests.support.streams import needs_available_now

PUBLISH = {
    "postgremq": "select postgremq.publish_message('orders', jsonb_build_object('n', %s::int))",
    "qgres": "select qgres.\"Publish\"('orders', jsonb => jsonb_build_object('n', %s::int))",
}
DECLARED: dict[str, dict[str, Any]] = {
    "postgremq": {"topics": ["orders"]},
    "qgres": {"serial_queues": ["orders"]},
}
LOGGING = {
    "postgremq": ("postgremq.log_topic", "postgremq.unlog_topic"),
    "qgres": ("qgres.log_queue", "qgres.unlog_queue"),
}
each_addon = pytest.mark.parametrize("addon", DECLARED)


@pytest.fixture
def url(server: Any) -> Iterator[str]:
    """An empty database."""
    with empty_database(server) as url:
        yield url


@pytest.fixture
def db(url: str) -> Iterator[Connection]:
    with connect(url) as db:
        yield db


@pytest.fixture
def publish(db: Connection) -> Callable[[str, range], None]:
    """Publishes numbers, and ticks the queue that logs them."""

    def numbers(addon: str, wanted: range) -> None:
        for number in wanted:
            value(db, PUBLISH[addon], number)
        tick(db, f"{addon}.orders")

    return numbers


def totals_of(queue: str) -> dg.AssetsDefinition:
    @pgque_asset(queue=queue)
    def totals(batch: SparkBatch) -> Any:
        rows = batch.payload("n int not null", keep=["ev_extra1"]).collect()
        return sorted((int(row["ev_extra1"]), row["n"]) for row in rows)

    return totals


@each_addon
def test_an_asset_gets_each_entry_once_and_in_order(
    url: str, spark: SparkSession, addon: str, publish: Callable[[str, range], None]
) -> None:
    queue = f"{addon}.orders"
    resource = PgqueResource(url=url, consumers={queue: ["totals"]}, **DECLARED[addon])
    resource.database_url()
    kept = StoringIOManager()
    for numbers in (range(1, 4), range(4, 7)):
        publish(addon, numbers)
        result = materialize(
            totals_of(queue), url, spark, io_manager=kept, resources={"pgque": resource}
        )
        assert result.success
    ids = [entry for batch in kept.stored for entry, _ in batch]
    assert [number for batch in kept.stored for _, number in batch] == [1, 2, 3, 4, 5, 6]
    assert ids == sorted(set(ids))
    with connect(url) as db:
        assert value(db, "select pgque.next_batch(%s, 'totals')", queue) is None


@needs_available_now
@each_addon
def test_a_stream_gets_each_entry_once(
    url: str,
    spark: SparkSession,
    tmp_path: Path,
    addon: str,
    publish: Callable[[str, range], None],
) -> None:
    queue = f"{addon}.orders"
    PgqueResource(url=url, consumers={queue: ["stream"]}, **DECLARED[addon]).database_url()
    publish(addon, range(1, 6))
    register(spark)
    delivered: list[str] = []

    def keep(events: DataFrame, _: int) -> None:
        delivered.extend(row.ev_data for row in events.select("ev_data").collect())

    query = (
        spark.readStream.format("pgque")
        .options(url=url, queue=queue, consumer="stream")
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert sorted(delivered) == [f'{{"n": {number}}}' for number in range(1, 6)]


@each_addon
def test_a_reader_starts_where_an_administrator_did(url: str, addon: str) -> None:
    installer.install(url, [addon])
    reader = as_login(url, "pgque_reader")
    text = f'nothing is logged in queue "{addon}.orders"'
    with pytest.raises(PermissionDenied, match=text) as error:
        PgqueResource(url=reader, **DECLARED[addon]).database_url()
    assert f"select {addon}.log_" in str(error.value.hint)
    PgqueResource(url=url, **DECLARED[addon]).database_url()
    assert PgqueResource(url=reader, **DECLARED[addon]).database_url() == reader


@each_addon
def test_a_queue_of_an_unlogged_name_is_not_made_by_hand(url: str, addon: str) -> None:
    ((option, _),) = DECLARED[addon].items()
    queue = f"{addon}.order"
    with pytest.raises(QueueNotFound, match=f"Name order in `{option}`.*{addon}.log_") as error:
        PgqueResource(url=url, queues=[queue]).database_url()
    with connect(url) as db, pytest.raises(psycopg.Error) as raised:
        value(db, "select pgque.register_consumer(%s, 'c')", queue)
    assert f"select {addon}.log_" in str(raised.value.diag.message_hint)
    assert "create-queue" not in str(error.value)


@each_addon
def test_a_queue_that_was_created_by_hand_is_not_taken_for_the_log(url: str, addon: str) -> None:
    queue = f"{addon}.orders"
    installer.install(url, [addon])
    with connect(url) as db:
        value(db, "select pgque.create_queue(%s)", queue)
        value(db, "select pgque.send(%s, 'not a message')", queue)
    resource = PgqueResource(url=url, **DECLARED[addon])
    reader = PgqueResource(url=as_login(url, "pgque_reader"), **DECLARED[addon])
    text = f'"{queue}" exists, and {addon} did not create it'
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=text) as error:
            resource.database_url()
        assert f"select pgque.drop_queue('{queue}')" in str(error.value.hint)
        with pytest.raises(PermissionDenied, match="nothing is logged"):
            reader.database_url()
    with connect(url) as db:
        value(db, "select pgque.drop_queue(%s)", queue)
    assert resource.database_url() == url
    assert reader.database_url() == reader.url


@each_addon
def test_a_log_that_was_made_before_queues_noted_their_add_on_goes_on(
    db: Connection, url: str, publish: Callable[[str, range], None], addon: str
) -> None:
    PgqueResource(url=url, **DECLARED[addon]).database_url()
    db.execute("update pgque.queue set queue_addon = ''")
    installer.install(url)
    publish(addon, range(1))
    assert value(db, f"select {addon}.logged_as('orders')") == f"{addon}.orders"


@each_addon
def test_a_queue_created_by_hand_after_the_log_was_dropped_gets_nothing(
    url: str, addon: str, publish: Callable[[str, range], None]
) -> None:
    queue = f"{addon}.orders"
    PgqueResource(url=url, **DECLARED[addon]).database_url()
    with connect(url) as db:
        value(db, "select pgque.drop_queue(%s)", queue)
        value(db, "select pgque.create_queue(%s)", queue)
        assert value(db, f"select {addon}.logged_as('orders')") is None
    installer.install(url, [addon])
    with pytest.raises(psycopg.Error, match=f"exists, and {addon} did not create it"):
        publish(addon, range(1, 2))
    with connect(url) as db:
        assert stored_payloads(db, queue) == set()


@each_addon
def test_a_log_that_was_dropped_is_created_again(url: str, addon: str) -> None:
    logged = f"select {addon}.logged_as('orders')"
    installer.install(url, [addon])
    with connect(url) as db:
        assert value(db, logged) is None
        PgqueResource(url=url, **DECLARED[addon]).database_url()
        assert value(db, logged) == f"{addon}.orders"
        value(db, "select pgque.drop_queue(%s)", f"{addon}.orders")
        assert value(db, logged) is None
        PgqueResource(url=url, install="never", **DECLARED[addon]).database_url()
        assert value(db, logged) == f"{addon}.orders"


@each_addon
def test_logging_is_switched_off_and_on_again(
    url: str, addon: str, publish: Callable[[str, range], None]
) -> None:
    log, unlog = LOGGING[addon]
    queue = f"{addon}.orders"
    resource = PgqueResource(url=url, consumers={queue: ["c"]}, **DECLARED[addon])
    resource.database_url()
    publish(addon, range(1, 2))
    with connect(url) as db:
        for _ in range(2):
            value(db, f"select {unlog}('orders')::text")
        assert value(db, f"select {addon}.logged_as('orders')") is None
        publish(addon, range(2, 3))
        assert value(db, f"select {log}('orders')") == queue
        publish(addon, range(3, 4))
        data = [json.loads(str(event)) for event in drain(db, queue)]
    assert data == [{"n": 1}, {"n": 3}]


def test_a_serial_queue_may_be_declared_in_another_case(url: str) -> None:
    PgqueResource(url=url, serial_queues=["Orders"]).database_url()
    reader = as_login(url, "pgque_reader")
    other = PgqueResource(url=reader, serial_queues=["ORDERS"], consumers={"qgres.Orders": ["c"]})
    assert other.database_url() == reader
    with connect(url) as db:
        queues = "select array_agg(queue_name) from pgque.queue"
        assert value(db, queues) == ["qgres.Orders"]


def test_removing_an_add_on_that_is_not_installed_says_which_are(url: str) -> None:
    installer.install(url, ["qgres"])
    with pytest.raises(AddonMissing, match=r"postgremq is not installed.*Installed are: qgres"):
        installer.uninstall(url, addon="postgremq")


@each_addon
def test_yaml_declares_what_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addon: str
) -> None:
    project = DgProject(tmp_path)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    ((option, names),) = DECLARED[addon].items()
    project.write(
        "pgque", f"type: pgque_dagster.PgqueComponent\nattributes: {{{option}: {names}}}\n"
    )
    consumer = f"queue: {addon}.orders, consumer: totals, transform: math.sqrt"
    project.write(
        "totals", f"type: pgque_dagster.BatchConsumerComponent\nattributes: {{{consumer}}}\n"
    )
    resource = project.load().resources["pgque"]
    assert getattr(resource, option) == names

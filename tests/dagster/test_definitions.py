"""Lineage, checks, resource and IO manager, combined in the Definitions of a code location."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import (
    ParquetBatchIOManager,
    PgqueResource,
    SparkBatch,
    build_dead_letter_checks,
    build_queue_assets,
    dead_letters_key,
    installer,
    pgque_asset,
    queue_key,
)
from pgque_dagster.client import Client, ConnectionFailed, SchemaMissing
from tests.conftest import Server, administer
from tests.dagster.support import materialize
from tests.support.events import claim, make_queue, publish


@pgque_asset(queue="orders", consumer="revenue")
def totals(batch: SparkBatch) -> object:
    return batch.payload("id bigint not null")


def test_the_queue_and_its_dead_letters_are_upstream_of_the_asset(database_url: str) -> None:
    graph = dg.Definitions(
        assets=[*build_queue_assets("orders", consumers=[totals]), totals],
        resources={"pgque": PgqueResource(url=database_url), "pyspark": None},
    ).resolve_asset_graph()

    assert graph.get(totals.key).parent_keys == {queue_key("orders")}
    assert graph.get(dead_letters_key("orders")).parent_keys == {totals.key}
    assert not graph.get(queue_key("orders")).is_materializable


def test_the_dead_letter_check_fails_until_they_are_purged(database_url: str) -> None:
    (check,) = build_dead_letter_checks(["orders"])
    with Client(database_url) as client:
        make_queue(client)
        ids = publish(client, ["a", "b"])
        batch = claim(client)
        batch.dead_letter(ids, reason="no good")
        batch.ack()

        failing = check(pgque=PgqueResource(url=database_url))
        client.purge_dead_letters("orders", timedelta(0))
        passing = check(pgque=PgqueResource(url=database_url))

    assert not failing.passed
    assert failing.metadata["dead_letters"].value == 2
    assert "dlq_replay_all('orders')" in failing.metadata["what_to_do"].value
    assert passing.passed


def test_a_second_attempt_replaces_what_the_first_one_stored(
    database_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    io_manager = ParquetBatchIOManager(base_dir=str(tmp_path / "with space"))
    with Client(database_url) as client:
        make_queue(client)
        publish(client, [{"id": 1}, {"id": 2}])
        batch_id = client.next_batch("orders", "revenue")

        @pgque_asset(queue="orders", consumer="revenue", name="totals")
        def crashing(batch: SparkBatch) -> object:
            yield dg.Output(batch.payload("id bigint not null"))
            raise RuntimeError("after the output was stored, before the ack")

        first = materialize(crashing, database_url, spark, io_manager=io_manager)
        second = materialize(totals, database_url, spark, io_manager=io_manager)

    table = spark.read.parquet(str(tmp_path / "with space" / "totals"))
    assert not first.success
    assert second.success
    assert sorted((row.batch_id, row.id) for row in table.collect()) == [
        (batch_id, 1),
        (batch_id, 2),
    ]


def test_what_a_killed_attempt_left_is_invisible_and_goes_with_the_next(
    database_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    with Client(database_url) as client:
        make_queue(client)
        publish(client, [{"id": 1}])
        batch_id = client.next_batch("orders", "revenue")
        leftover = tmp_path / "totals" / f"batch_id={batch_id}" / ".writing-0.0123"
        spark.range(7).write.parquet(str(leftover))
        other = tmp_path / "totals" / f"batch_id={batch_id}1" / ".writing-0.0123"
        spark.range(7).write.parquet(str(other))
        mark = tmp_path / "totals" / "_pgque" / "lineages" / str(client.lineage())
        mark.mkdir(parents=True)

        materialize(
            totals, database_url, spark, io_manager=ParquetBatchIOManager(base_dir=str(tmp_path))
        )

    assert spark.read.parquet(str(tmp_path / "totals")).count() == 1
    assert not leftover.exists()
    assert other.exists()


def test_a_downstream_asset_reads_all_batches(
    database_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    io_manager = ParquetBatchIOManager(base_dir=str(tmp_path))
    with Client(database_url) as client:
        make_queue(client)
        for n in range(2):
            publish(client, [{"id": n}])
            materialize(totals, database_url, spark, io_manager=io_manager)
    context = dg.build_input_context(asset_key=totals.key)

    frame = io_manager.load_input(context)

    assert sorted(row.id for row in frame.collect()) == [0, 1]


def test_an_output_that_is_no_dataframe_is_refused_and_the_batch_stays(
    database_url: str, spark: SparkSession, tmp_path: Path
) -> None:
    @pgque_asset(queue="orders", consumer="revenue")
    def number(batch: SparkBatch) -> int:
        return 1

    with Client(database_url) as client:
        make_queue(client)
        publish(client, ["a"])

        result = materialize(
            number, database_url, spark, io_manager=ParquetBatchIOManager(base_dir=str(tmp_path))
        )

        assert not result.success
        assert client.next_batch("orders", "revenue") is not None


@pytest.fixture
def empty_database(server: Server, request: pytest.FixtureRequest) -> str:
    administer(server, "create database without_schema")
    request.addfinalizer(lambda: administer(server, "drop database without_schema with (force)"))
    return server.database_url("without_schema")


def test_the_resource_installs_what_is_missing_and_creates_its_queues(empty_database: str) -> None:
    resource = PgqueResource(url=empty_database, queues=["orders"])

    with resource.client() as client:
        names = [queue.name for queue in client.queues()]

    assert names == ["orders"]
    assert installer.installed_version(empty_database) is not None


def test_the_resource_installs_nothing_where_it_must_not(empty_database: str) -> None:
    resource = PgqueResource(url=empty_database, install="never", queues=["orders"])

    with pytest.raises(SchemaMissing, match="pgque install"), resource.client():
        pass


def test_a_wrong_url_is_one_line_without_the_password() -> None:
    resource = PgqueResource(url="postgresql://me:secret@127.0.0.1:1/none")

    with pytest.raises(ConnectionFailed) as failure, resource.client():
        pass

    assert "secret" not in str(failure.value)
    assert "\n" not in str(failure.value)


def test_without_a_url_the_embedded_server_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUE_HOME", str(tmp_path))

    with PgqueResource(queues=["orders"]).client() as client:
        assert [queue.name for queue in client.queues()] == ["orders"]
    assert (tmp_path / ".pgque").is_dir()

"""Replays compute past events again, and store the output apart from the original."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgque_dagster import (
    ParquetBatchIOManager,
    PgqueResource,
    PostgresBatchIOManager,
    SparkBatch,
    pgque_asset,
    pgque_replay_asset,
)
from tests.dagster.orders import Orders, Result, error_of, materialized, values
from tests.dagster.support import SessionHolder
from tests.support.events import claim, tick
from tests.support.queues import connect, rows
from tests.support.windows import send_at_hours

FAILS_AT = "REPLAY_TEST_FAILS_AT"
HOUR_1 = {"from_time": "2026-01-01T01:00+00:00"}


def payloads(batch: SparkBatch) -> DataFrame:
    """Returns the payloads; fails if one is the payload that the environment names."""
    frame = batch.events(["ev_data"])
    failing = os.environ.get(FAILS_AT)
    if failing in {row.ev_data for row in frame.collect()}:
        raise RuntimeError(f"failed at {failing}")
    return frame


kept = pgque_asset(queue="orders", consumer="revenue", name="kept")(payloads)
replayed = pgque_replay_asset(queue="orders", name="kept_replay")(payloads)


def ticks(first: int, last: int) -> dict[str, Any]:
    return {"from_tick": first, "to_tick": last}


def replay(orders: Orders, folder: Path, config: dict[str, Any], asset: Any = replayed) -> Result:
    return orders.run(asset, config=config, manager=ParquetBatchIOManager(base_dir=str(folder)))


def stored(orders: Orders, folder: Path, asset: str = "kept_replay") -> list[str]:
    table = orders.spark.read.parquet(str(folder / asset))
    return sorted(row.ev_data for row in table.collect())


def test_a_range_of_ticks_comes_once_more_and_what_was_consumed_stays(
    orders: Orders, tmp_path: Path
) -> None:
    orders.publish(["a"])
    orders.run(kept, manager=ParquetBatchIOManager(base_dir=str(tmp_path)))
    _, first, second, _ = orders.consume(["b"], ["c"], ["d"])
    orders.publish(["waiting"])

    assert replay(orders, tmp_path, ticks(first, second)).success
    assert stored(orders, tmp_path) == ["c"]
    assert stored(orders, tmp_path, "kept") == ["a"]
    assert orders.left() == ["waiting"]
    assert orders.consumers() == ["revenue"]


def test_each_replay_has_a_directory_of_its_own_and_its_range_as_one_batch(
    orders: Orders, tmp_path: Path
) -> None:
    first, *_, last = orders.consume(["a"], ["b"], ["c"])

    runs = [replay(orders, tmp_path, ticks(first, last)) for _ in range(2)]

    assert [values(each)["pgque/events"] for each in materialized(runs[0])] == [3]
    table = orders.spark.read.parquet(str(tmp_path / "kept_replay"))
    assert {row.replay for row in table.collect()} == {f"replay-{run.run_id[:8]}" for run in runs}
    assert stored(orders, tmp_path) == sorted("abcabc")


def test_a_range_of_times_has_the_events_that_a_window_of_that_time_has(
    orders: Orders, tmp_path: Path
) -> None:
    send_at_hours(orders.client, [["a"], ["b"], ["c"], ["d"]])

    assert replay(orders, tmp_path, {**HOUR_1, "to_time": "2026-01-01T03:00+00:00"}).success
    assert stored(orders, tmp_path) == ["b", "c"]
    assert orders.consumers() == ["revenue"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "the replay has no range"),
        (HOUR_1, "the replay has no range"),
        ({"from_time": "yesterday", "to_time": "now"}, "'yesterday' is no time with a zone"),
        ({"from_time": "2026-01-01T01:00", "to_time": "2026-01-02"}, "no time with a zone"),
        ({**HOUR_1, "to_time": "2030-01-01T01:00+00:00"}, "is not over"),
        (ticks(2, 2), "no events lie between"),
        (ticks(2, 1), "no events lie between"),
        (ticks(1, 99), "has no tick"),
        (ticks(-99, 2), "has no tick"),
    ],
)
def test_a_range_that_is_none_is_red_and_leaves_no_consumer(
    orders: Orders, tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    send_at_hours(orders.client, [["a"], ["b"]])

    # The config of a run may not be empty.
    result = replay(orders, tmp_path, config or {"from_tick": 1})

    assert words in error_of(result)
    assert orders.consumers() == ["revenue"]


def test_an_event_that_was_delivered_again_is_replayed_once(orders: Orders, tmp_path: Path) -> None:
    ids = orders.publish(["a"])
    batch = claim(orders.client)
    batch.nack(ids, retry_after=timedelta(0))
    batch.ack()
    orders.client.maint()
    tick(orders.client)
    again = claim(orders.client)
    assert [event.payload for event in again.events()] == ["a"]
    again.ack()

    range_of_both = ticks(batch.lease.prev_tick_id, again.lease.tick_id)
    assert replay(orders, tmp_path, range_of_both).success
    assert stored(orders, tmp_path) == ["a"]


def test_a_replay_that_failed_goes_on_with_its_batch_when_it_is_executed_again(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = orders.consume(["a"], ["b"], ["c"])
    monkeypatch.setenv("REPLAY_TEST_URL", orders.client.url)
    monkeypatch.setenv("REPLAY_TEST_FOLDER", str(tmp_path / "out"))
    monkeypatch.setenv(FAILS_AT, "b")
    (tmp_path / "home").mkdir()
    job = dg.reconstructable(replay_job)
    config = {"ops": {"kept_replay": {"config": ticks(first, last)}}}
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        failed = dg.execute_job(job, instance, run_config=config)
        (consumer,) = set(orders.consumers()) - {"revenue"}
        monkeypatch.delenv(FAILS_AT)
        options = dg.ReexecutionOptions(failed.run_id)
        again = dg.execute_job(job, instance, run_config=config, reexecution_options=options)

    assert consumer == f"replay-{failed.run_id[:8]}"
    assert (failed.success, again.success) == (False, True)
    table = orders.spark.read.parquet(str(tmp_path / "out" / "kept_replay"))
    found = sorted((row.ev_data, row.replay) for row in table.collect())
    assert found == [(text, consumer) for text in "abc"]
    assert orders.consumers() == ["revenue"]


def replay_job() -> dg.JobDefinition:
    """The replay job as a separate process loads it."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    return dg.Definitions(
        assets=[replayed],
        jobs=[dg.define_asset_job("replay", [replayed], executor_def=dg.in_process_executor)],
        resources={
            "pgque": PgqueResource(url=os.environ["REPLAY_TEST_URL"]),
            "pyspark": SessionHolder(spark),
            "io_manager": ParquetBatchIOManager(base_dir=os.environ["REPLAY_TEST_FOLDER"]),
        },
    ).resolve_job_def("replay")


def asset_in(table: str) -> dg.AssetsDefinition:
    metadata = {"dagster/table_name": table}
    return pgque_asset(queue="orders", name="kept", metadata=metadata)(payloads)


def test_a_replay_is_kept_in_a_table_beside_that_of_its_asset_or_named_after_it(
    orders: Orders,
) -> None:
    first, *_, last = orders.consume(["a"], ["b"])
    beside = pgque_replay_asset(queue="orders", of=asset_in("sales.kept"), name="kept_replay")
    manager = PostgresBatchIOManager(pgque=PgqueResource(url=orders.client.url))
    with connect(orders.client.url) as db:
        db.execute("create schema sales")
        for table in ("sales.kept", "sales.kept_replay", "kept_replay"):
            db.execute(f"create table {table} (ev_data text)".encode())
        orders.run(beside(payloads), config=ticks(first, last), manager=manager)

        assert sorted(rows(db, "table sales.kept_replay")) == [("a",), ("b",)]
        assert rows(db, "table kept_replay") == rows(db, "table sales.kept") == []
        orders.run(replayed, config=ticks(first, last), manager=manager)
        assert sorted(rows(db, "table kept_replay")) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("table", "metadata", "expected"),
    [
        ("revenue", {}, "revenue_replay"),
        ('sales."The Revenue"', {}, 'sales."The Revenue_replay"'),
        ("sales.revenue", {"dagster/table_name": "tests.mine"}, "tests.mine"),
    ],
)
def test_the_table_of_a_replay_is_named_after_that_of_the_asset_unless_it_has_its_own(
    table: str, metadata: dict[str, str], expected: str
) -> None:
    replay = pgque_replay_asset(queue="orders", of=asset_in(table), metadata=metadata)(payloads)

    assert replay.get_asset_spec().metadata["dagster/table_name"] == expected


def test_what_a_replay_cannot_be_is_refused_when_it_is_defined() -> None:
    def configured(batch: SparkBatch, config: str) -> list[str]:
        return []

    with pytest.raises(dg.DagsterInvalidDefinitionError, match="more than 63 bytes"):
        pgque_replay_asset(queue="orders", of=asset_in(f"sales.{'x' * 57}"))
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="already has a config"):
        pgque_replay_asset(queue="orders")(configured)


def test_the_config_of_a_replay_is_explained_in_the_launchpad() -> None:
    fields = replayed.op.config_schema.config_type.fields  # type: ignore[attr-defined]

    assert set(fields) == {"from_tick", "to_tick", "from_time", "to_time"}
    assert all(field.description for field in fields.values())

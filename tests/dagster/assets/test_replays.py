"""Replays compute past events again, and store the output apart from the original."""

import os
from collections.abc import Callable
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
from pgque_dagster.client import Client
from tests.dagster.support import SessionHolder
from tests.support.events import claim, publish
from tests.support.queues import connect, rows
from tests.support.windows import send_at_hours

FAILS_AT = "REPLAY_TEST_FAILS_AT"


def payloads(batch: SparkBatch) -> DataFrame:
    """Returns the payloads; fails if one is the payload that the environment names."""
    frame = batch.events(["ev_data"])
    failing = os.environ.get(FAILS_AT)
    if failing in {row.ev_data for row in frame.collect()}:
        raise RuntimeError(f"failed at {failing}")
    return frame


kept = pgque_asset(queue="orders", consumer="revenue", name="kept")(payloads)
replayed = pgque_replay_asset(queue="orders", name="kept_replay")(payloads)


def consume(client: Client, *batches: list[str]) -> list[int]:
    """Publishes batches and acks each; returns the ticks around them."""
    ticks = []
    for texts in batches:
        publish(client, texts)
        batch = claim(client)
        ticks += [batch.lease.prev_tick_id, batch.lease.tick_id]
        batch.ack()
    return sorted(set(ticks))


def config(from_tick: int | None, to_tick: int | None, **more: Any) -> dict[str, Any]:
    ticks = {} if from_tick is None else {"from_tick": from_tick, "to_tick": to_tick}
    return {
        "ops": {
            "kept_replay": {"config": {**ticks, **more}},
        }
    }


def resources(url: str, spark: SparkSession, folder: Path) -> dict[str, Any]:
    return {
        "pgque": PgqueResource(url=url),
        "pyspark": SessionHolder(spark),
        "io_manager": ParquetBatchIOManager(base_dir=str(folder)),
    }


@pytest.fixture
def replay(
    client: Client, spark: SparkSession, tmp_path: Path
) -> Callable[..., dg.ExecuteInProcessResult]:
    """Replays a range of ticks into Parquet."""

    def run(
        from_tick: int | None,
        to_tick: int | None,
        asset: dg.AssetsDefinition = replayed,
        **more: Any,
    ) -> dg.ExecuteInProcessResult:
        return dg.materialize(
            [asset],
            resources=resources(client.url, spark, tmp_path),
            run_config=config(from_tick, to_tick, **more),
            raise_on_error=False,
        )

    return run


def stored(spark: SparkSession, folder: Path, asset: str = "kept_replay") -> list[str]:
    return sorted(row.ev_data for row in spark.read.parquet(str(folder / asset)).collect())


def names(client: Client) -> list[str]:
    return [consumer.name for consumer in client.consumers("orders")]


def error_of(result: dg.ExecuteInProcessResult) -> str:
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def test_a_range_of_ticks_comes_once_more_and_what_was_consumed_stays(
    client: Client, spark: SparkSession, tmp_path: Path, replay: Any
) -> None:
    publish(client, ["a"])
    dg.materialize([kept], resources=resources(client.url, spark, tmp_path))
    _, first, second, _ = consume(client, ["b"], ["c"], ["d"])
    publish(client, ["waiting"])

    result = replay(first, second)

    assert result.success
    assert stored(spark, tmp_path) == ["c"]
    assert stored(spark, tmp_path, "kept") == ["a"]
    assert [event.payload for event in claim(client).events()] == ["waiting"]
    assert names(client) == ["revenue"]


def test_each_replay_has_a_directory_of_its_own(
    client: Client, spark: SparkSession, tmp_path: Path, replay: Any
) -> None:
    ticks = consume(client, ["a"], ["b"])

    runs = [replay(ticks[0], ticks[-1]) for _ in range(2)]

    table = spark.read.parquet(str(tmp_path / "kept_replay"))
    assert {row.replay for row in table.collect()} == {f"replay-{run.run_id[:8]}" for run in runs}
    assert stored(spark, tmp_path) == ["a", "a", "b", "b"]


def test_a_long_range_comes_in_batches_of_so_many_events_each_recorded(
    client: Client, spark: SparkSession, tmp_path: Path, replay: Any
) -> None:
    ticks = consume(client, ["a"], ["b"], ["c"])

    result = replay(ticks[0], ticks[-1], max_events=2)

    events = [
        event.metadata["pgque/events"].value
        for event in result.asset_materializations_for_node("kept_replay")
    ]
    assert events == [2, 1]
    assert stored(spark, tmp_path) == ["a", "b", "c"]


def test_a_range_of_times_has_the_events_that_a_window_of_that_time_has(
    client: Client, spark: SparkSession, tmp_path: Path, replay: Any
) -> None:
    send_at_hours(client, [["a"], ["b"], ["c"], ["d"]])

    times = {"from_time": "2026-01-01T01:00+00:00", "to_time": "2026-01-01T03:00+00:00"}

    assert replay(None, None, **times).success
    assert stored(spark, tmp_path) == ["b", "c"]
    assert names(client) == ["revenue"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "the replay has no range"),
        ({"from_time": "2026-01-01T01:00+00:00"}, "the replay has no range"),
        ({"from_time": "yesterday", "to_time": "now"}, "'yesterday' is no time with a zone"),
        ({"from_time": "2026-01-01T01:00", "to_time": "2026-01-02"}, "no time with a zone"),
        (
            {"from_time": "2026-01-01T01:00+00:00", "to_time": "2030-01-01T01:00+00:00"},
            "is not over",
        ),
    ],
)
def test_a_range_that_is_none_is_red_and_registers_nothing(
    client: Client, replay: Any, options: dict[str, str], words: str
) -> None:
    send_at_hours(client, [["a"], ["b"]])

    assert words in error_of(replay(None, None, **options))
    assert names(client) == ["revenue"]


def test_an_event_that_was_delivered_again_is_replayed_once(
    client: Client, spark: SparkSession, tmp_path: Path, replay: Any
) -> None:
    ids = publish(client, ["a"])
    batch = claim(client)
    batch.nack(ids, retry_after=timedelta(0))
    batch.ack()
    client.maint()
    client.force_next_tick("orders")
    client.ticker()
    again = claim(client)
    assert [event.payload for event in again.events()] == ["a"]
    again.ack()

    assert replay(batch.lease.prev_tick_id, again.lease.tick_id).success
    assert stored(spark, tmp_path) == ["a"]


def test_a_replay_that_failed_goes_on_with_its_batch_when_it_is_executed_again(
    client: Client,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = consume(client, ["a"], ["b"], ["c"])
    monkeypatch.setenv("REPLAY_TEST_URL", client.url)
    monkeypatch.setenv("REPLAY_TEST_FOLDER", str(tmp_path / "out"))
    monkeypatch.setenv(FAILS_AT, "b")
    (tmp_path / "home").mkdir()
    job = dg.reconstructable(replay_job)
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:

        def execute(**options: Any) -> dg.JobExecutionResult:
            wanted = config(ticks[0], ticks[-1], max_events=1)
            return dg.execute_job(job, instance, run_config=wanted, **options)

        failed = execute()
        (consumer,) = (name for name in names(client) if name != "revenue")
        monkeypatch.delenv(FAILS_AT)
        again = execute(reexecution_options=dg.ReexecutionOptions(failed.run_id))

    assert consumer == f"replay-{failed.run_id[:8]}"
    assert (failed.success, again.success) == (False, True)
    table = spark.read.parquet(str(tmp_path / "out" / "kept_replay"))
    assert sorted((row.ev_data, row.replay) for row in table.collect()) == [
        ("a", consumer),
        ("b", consumer),
        ("c", consumer),
    ]
    assert names(client) == ["revenue"]


def replay_job() -> dg.JobDefinition:
    """The replay job as a separate process loads it."""
    spark = SparkSession.getActiveSession()
    assert spark is not None
    return dg.Definitions(
        assets=[replayed],
        jobs=[dg.define_asset_job("replay", [replayed], executor_def=dg.in_process_executor)],
        resources=resources(
            os.environ["REPLAY_TEST_URL"], spark, Path(os.environ["REPLAY_TEST_FOLDER"])
        ),
    ).resolve_job_def("replay")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ((1, 1), "no events lie between"),
        ((1, 0), "no events lie between"),
        ((0, 99), "has no tick"),
        ((-99, 1), "has no tick"),
    ],
)
def test_a_range_that_cannot_be_replayed_is_refused_and_leaves_no_consumer(
    client: Client, replay: Any, offsets: tuple[int, int], message: str
) -> None:
    first, *_ = consume(client, ["a"])

    result = replay(first + offsets[0], first + offsets[1])

    assert message in error_of(result)
    assert names(client) == ["revenue"]


def test_a_function_that_stores_by_itself_cannot_be_replayed(
    client: Client, spark: SparkSession, replay: Any
) -> None:
    @pgque_replay_asset(queue="orders", name="kept_replay")
    def storing(batch: SparkBatch) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult()

    ticks = consume(client, ["a"])

    assert "but got no value" in error_of(replay(ticks[0], ticks[-1], storing))


def test_a_replay_into_postgres_is_merged_into_the_table_named_after_it(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    ticks = consume(client, ["a"], ["b"])
    pgque = PgqueResource(url=client.url)
    with connect(client.url) as db:
        db.execute("create table kept_replay (ev_data text)")
        dg.materialize(
            [replayed],
            resources={
                **resources(client.url, spark, tmp_path),
                "io_manager": PostgresBatchIOManager(pgque=pgque),
            },
            run_config=config(ticks[0], ticks[-1], max_events=1),
        )

        assert sorted(rows(db, "table kept_replay")) == [("a",), ("b",)]


def asset_in(table: str) -> dg.AssetsDefinition:
    metadata = {"dagster/table_name": table}
    return pgque_asset(queue="orders", name="kept", metadata=metadata)(payloads)


def test_a_replay_of_an_asset_is_kept_in_the_schema_of_its_table(
    client: Client, spark: SparkSession, tmp_path: Path
) -> None:
    ticks = consume(client, ["a"])
    replay = pgque_replay_asset(queue="orders", of=asset_in("sales.kept"), name="kept_replay")
    with connect(client.url) as db:
        db.execute("create schema sales")
        for table in ("sales.kept", "sales.kept_replay", "kept_replay"):
            db.execute(f"create table {table} (ev_data text)".encode())
        dg.materialize(
            [replay(payloads)],
            resources={
                **resources(client.url, spark, tmp_path),
                "io_manager": PostgresBatchIOManager(pgque=PgqueResource(url=client.url)),
            },
            run_config=config(ticks[0], ticks[-1]),
        )

        assert rows(db, "table sales.kept_replay") == [("a",)]
        assert rows(db, "table kept_replay") == rows(db, "table sales.kept") == []


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


def test_a_name_that_postgres_would_cut_off_is_refused_when_it_is_defined() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="more than 63 bytes"):
        pgque_replay_asset(queue="orders", of=asset_in(f"sales.{'x' * 57}"))


def test_a_body_with_a_config_of_its_own_is_refused_when_it_is_defined() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="already has a config"):

        @pgque_replay_asset(queue="orders")
        def configured(batch: SparkBatch, config: str) -> list[str]:
            return []


def test_the_config_of_a_replay_is_explained_in_the_launchpad() -> None:
    fields = replayed.op.config_schema.config_type.fields  # type: ignore[attr-defined]

    assert set(fields) == {"from_tick", "to_tick", "from_time", "to_time", "max_events"}
    assert all(field.description for field in fields.values())

"""Malformed events that tasks report: the set is whole, whatever Spark does."""

import json
import secrets
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pgque_dagster.client import Client, MalformedPayload
from pgque_dagster.client.encoding import Payload
from pgque_dagster.spark import ParquetSink, SparkBatch
from pgque_dagster.spark import batch as batch_module
from pgque_dagster.spark.payload import slices as slices_module
from tests.support.queues.events import claim, publish, tick
from tests.support.spark.jobs import jobs_of

SCHEMA = "id int not null, note string"
GOOD, WRONG = 400, 7
LARGE = "x" * 200
REASON = "malformed payload: Expected `int`, got `str` - at `$.id`"
Opened = Callable[..., SparkBatch]


class Late(SparkBatch):
    """As a step makes it for a function that returns DataFrames to an IO manager."""

    settles_late = True


@pytest.fixture(autouse=True)
def on_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "DRIVER_SIDE_EVENTS", -1)


def events(good: int = GOOD, wrong: int = WRONG) -> list[Any]:
    """Malformed events among the others, in as many blocks as make several slices."""
    fitting: list[Any] = [{"id": number, "note": LARGE} for number in range(good)]
    for number in range(wrong):
        fitting.insert(number * good // max(wrong, 1), {"id": "x", "note": LARGE})
    return fitting


@pytest.fixture
def opened(client: Client, spark: SparkSession) -> Opened:
    def opened(payloads: list[Any], kind: type[SparkBatch] = Late) -> SparkBatch:
        client.send_batch("orders", [json.dumps(payload) for payload in payloads])
        tick(client)
        batch = kind(spark, claim(client), client.url, slices=3)
        assert len(batch.plan.slices) == 3, "the batch is too small to be read by several tasks"
        return batch

    return opened


def set_aside(client: Client, batch: SparkBatch) -> int:
    """How many events the ack made dead letters; all of them are the malformed ones."""
    count = batch.claim.ack().dead_lettered
    letters = client.dead_letters("orders", 1000)
    assert all(letter.reason == REASON for letter in letters)
    assert len({letter.event_id for letter in letters}) == len(letters) == count
    return count


def _fail_in_one_task(frame: DataFrame) -> None:
    broken = frame.withColumn("x", f.expr("if(id = 0, raise_error('broken'), 1)"))
    with pytest.raises(Exception, match="broken"):
        broken.write.format("noop").mode("overwrite").save()


def _cache_a_part(frame: DataFrame) -> None:
    cached = frame.persist()
    assert len(cached.limit(1).collect()) == 1
    cached.unpersist()


def _cache(frame: DataFrame) -> None:
    cached = frame.persist()
    assert (cached.count(), cached.where("id < 10").count()) == (GOOD, 10)
    cached.unpersist()


USES: dict[str, Callable[[DataFrame], object]] = {
    "never": lambda frame: None,
    "whole": lambda frame: frame.collect(),
    "limited": lambda frame: frame.limit(1).collect(),
    "filtered": lambda frame: frame.where("id < 0").collect(),
    "never true": lambda frame: frame.where(f.lit(False)).collect(),
    "no columns": lambda frame: frame.count(),
    "sorted": lambda frame: frame.orderBy("id").repartition(2).collect(),
    "joined with itself": lambda frame: frame.join(frame.groupBy("id").count(), "id").collect(),
    "twice": lambda frame: (frame.count(), frame.count()),
    "in one task": lambda frame: frame.coalesce(1).collect(),
    "some partitions": lambda frame: frame.rdd.mapPartitionsWithIndex(
        lambda nr, rows: rows if nr == 1 else []
    ).take(1),
    "cached": _cache,
    "cached in part": _cache_a_part,
    "failing": _fail_in_one_task,
    "sampled": lambda frame: frame.sample(0.01, seed=1).collect(),
}


# Spark executes the others as it does one of the rest.
ALWAYS = {"never", "limited", "twice", "failing"}


@pytest.mark.parametrize(
    "use", [pytest.param(x, marks=() if x in ALWAYS else pytest.mark.slow) for x in USES]
)
def test_all_malformed_events_are_set_aside_whatever_is_done_with_the_dataframe(
    client: Client, opened: Opened, use: str
) -> None:
    batch = opened(events())
    frame = batch.payload(SCHEMA)

    USES[use](frame)

    assert batch.claim.requested.dead_lettered == 0
    assert set_aside(client, batch) == WRONG
    batch.close()


@pytest.mark.parametrize("use", [pytest.param("never", marks=pytest.mark.slow), "whole"])
def test_too_many_malformed_events_fail_the_ack_whatever_is_done_with_the_dataframe(
    opened: Opened, use: str
) -> None:
    batch = opened(events(GOOD, 50))
    frame = batch.payload(SCHEMA)

    USES[use](frame)

    for _ in range(2):
        with pytest.raises(MalformedPayload, match=r"50 of 450 events .*at `\$.id`"):
            batch.claim.ack()
    assert batch.claim.requested.dead_lettered == 0
    batch.claim.renew()


def test_a_whole_read_leaves_nothing_to_read_for_the_check_and_its_reports_go_with_the_batch(
    spark: SparkSession, opened: Opened
) -> None:
    batch = opened(events())
    group = uuid.uuid4().hex
    batch.payload(SCHEMA).write.format("noop").mode("overwrite").save()

    spark.sparkContext.setJobGroup(group, "")
    batch.claim.run_checks()

    assert jobs_of(spark, group) == []
    assert batch.claim.requested.dead_lettered == WRONG
    held = slices_module._accumulator(spark.sparkContext).value
    before = len(held)
    batch.close()
    assert len(slices_module._accumulator(spark.sparkContext).value) == before - 3


@pytest.mark.parametrize("kind", [Late, pytest.param(SparkBatch, marks=pytest.mark.slow)])
def test_events_too_large_for_a_report_are_found_all_the_same(
    client: Client, opened: Opened, kind: type[SparkBatch]
) -> None:
    # Incompressible, so that PostgreSQL spreads the others over several slices, too.
    large = {"id": "x", "note": secrets.token_hex(slices_module._REPORT_BYTES)}
    batch = opened([*events(GOOD, 0), large], kind)

    assert batch.payload(SCHEMA).count() == GOOD

    assert any(slices._reported() is None for slices in batch._parsed)
    assert set_aside(client, batch) == 1


def test_a_sink_publishes_nothing_of_a_batch_with_too_many_malformed_events(
    opened: Opened, tmp_path: Path
) -> None:
    batch = opened(events(GOOD, 50))
    sink = ParquetSink(tmp_path)

    with pytest.raises(MalformedPayload, match="50 of 450"):
        sink.write(batch, batch.payload(SCHEMA))

    assert list(tmp_path.glob("**/publication-*")) == []
    assert batch.claim.requested.dead_lettered == 0


def test_several_calls_on_a_batch_count_together(opened: Opened) -> None:
    batch = opened([*events(GOOD, 30), *[{"id": 1, "note": 5}] * 20])
    batch.payload("id int not null").collect()
    batch.payload("note string").collect()

    with pytest.raises(MalformedPayload, match="50 of 450"):
        batch.claim.ack()


def test_one_malformed_event_fails_the_ack_under_fail(opened: Opened) -> None:
    failing = opened(events(GOOD, 1))
    failing.payload(SCHEMA, on_malformed="fail").collect()
    with pytest.raises(MalformedPayload, match=r"1 of 401 events .*event \d+: Expected `int`"):
        failing.claim.ack()


def test_a_check_at_the_call_persists_the_fields_until_the_batch_is_closed(opened: Opened) -> None:
    batch = opened(events(), SparkBatch)

    frame = batch.payload(SCHEMA)

    (persisted,) = (slices._persisted for slices in batch._parsed)
    assert persisted is not None and persisted.storageLevel.useMemory
    assert batch.claim.requested.dead_lettered == WRONG
    assert "InMemoryTableScan" in frame._jdf.queryExecution().executedPlan().toString()
    assert frame.count() == GOOD
    batch.close()
    assert not persisted.storageLevel.useMemory


def test_a_late_check_asks_what_the_consumer_finished_before(
    client: Client, spark: SparkSession
) -> None:
    wrong: list[Payload] = [{"id": "x", "note": secrets.token_hex(20_000)}] * 3
    publish(client, wrong)
    first = claim(client)
    batch = Late(spark, first, client.url, slices=3)
    batch.payload(SCHEMA).collect()
    with pytest.raises(MalformedPayload, match="finished no well-formed event before"):
        first.ack()
    first.release()
    client.finish_batch(first.batch_id)

    publish(client, wrong)
    late = Late(spark, claim(client), client.url, slices=3)
    late.payload(SCHEMA).collect()

    assert set_aside(client, late) == 3

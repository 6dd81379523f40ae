"""What a downstream asset gets by `pgque/batches: new`: each batch once, whichever run it is in."""

import random
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

from pgque_dagster import SparkBatch, pgque_asset
from pgque_dagster.assets.new_batches import batch_of, new_batches
from pgque_dagster.client import LeaseLost
from tests.dagster.assets.new_batches import NEW, RECORD, Pair, counted, recorded, report_to
from tests.dagster.orders import Orders, consuming, materialized, values
from tests.support.queues.windows import send_at_hours
from tests.support.runner.seeds import SEEDS


@pytest.mark.parametrize("manager", ["delta"], indirect=True)
def test_an_eager_asset_gets_each_batch_once_also_if_its_runs_are_fewer(
    orders: Orders, manager: Any, instance: dg.DagsterInstance
) -> None:
    pair = Pair(orders, instance, manager=manager)
    read: list[list[tuple[int, int]]] = []

    def note(found: DataFrame) -> None:
        read.append(sorted((row.number, row.batch_id) for row in found.collect()))

    report = report_to(note)
    defs = dg.Definitions([pair.upstream, report], resources={**orders.resources})
    cursor = dg.evaluate_automation_conditions(defs, instance).cursor
    stored = []
    for batches in (2, 1, 3):
        stored.append([pair.store_batch() for _ in range(batches)])
        found = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
        assert found.total_requested == 1
        assert pair.run(report).success
        cursor = dg.evaluate_automation_conditions(defs, instance, cursor=found.cursor).cursor
    assert pair.run(report).success

    (a, b), (c,), (d, e, f) = stored
    assert read == [[(1, a), (2, b)], [(3, c)], [(4, d), (5, e), (6, f)], []]
    assert recorded(instance) == [[a, b], [c], [d, e, f], []]


def test_what_is_stored_while_an_input_is_looked_up_is_read(
    orders: Orders, manager: Any, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(orders, instance, manager=manager)
    read: list[list[int]] = []

    def look_up(context: dg.InputContext) -> frozenset[int]:
        pair.store_batch()
        return new_batches(context)

    monkeypatch.setattr("pgque_dagster.assets.inputs.new_batches", look_up)
    pair.store_batch()
    for _ in range(2):
        report = report_to(lambda found: read.append([row.number for row in found.collect()]))
        assert pair.run(report).success

    assert list(map(sorted, read)) == [[1, 2], [3]]


def test_a_window_that_is_materialized_again_is_new_again(pair: Pair) -> None:
    read: list[frozenset[int]] = []
    hours = dg.HourlyPartitionsDefinition("2026-01-01-00:00", end_date="2026-01-01-03:00")

    @pgque_asset(queue="orders", name="numbers", partitions_def=hours)
    def hourly(batch: SparkBatch) -> int:
        return batch.event_count

    pair.upstream = hourly
    send_at_hours(pair.orders.client, [["a"], ["b"], ["c"]])
    for hour in ("01:00", "00:00", "01:00"):
        done = pair.orders.run(
            hourly,
            manager=pair.manager,
            instance=pair.instance,
            partition_key=f"2026-01-01-{hour}",
        )
        assert done.success
        assert pair.run(report_to(read.append)).success

    assert read == [{202601010100}, {202601010000}, {202601010100}]


def test_the_batches_of_a_run_that_failed_are_new_for_the_next_one(pair: Pair) -> None:
    read: list[frozenset[int]] = []

    def fail_at_first(found: frozenset[int]) -> None:
        read.append(found)
        if len(read) < 3:
            raise ValueError("boom")

    report = report_to(fail_at_first, retry_policy=dg.RetryPolicy(max_retries=1))
    one = pair.store_batch()
    assert not pair.run(report).success
    two = pair.store_batch()
    assert pair.run(report).success

    assert read == [{one}, {one}, {one, two}]
    assert recorded(pair.instance) == [[one, two]]


def test_a_batch_that_is_stored_again_is_new_again(pair: Pair) -> None:
    read: list[frozenset[int]] = []
    one = pair.store_batch()

    @consuming(name="numbers")
    def losing(batch: SparkBatch) -> int:
        batch.claim.before_ack(lost)
        return batch.event_count

    pair.orders.publish([{"number": 2}])
    assert not pair.orders.run(losing, manager=pair.manager, instance=pair.instance).success
    assert pair.run(report_to(read.append)).success
    again = pair.orders.run(counted, manager=pair.manager, instance=pair.instance)
    assert pair.run(report_to(read.append)).success

    (two,) = (values(made)["pgque/batch_id"] for made in materialized(again, "numbers"))
    assert read == [{one, two}, {two}]


def lost(transaction: object) -> None:
    raise LeaseLost("taken over")


def test_each_asset_has_a_record_of_its_own_for_each_upstream_asset(pair: Pair) -> None:
    early: list[frozenset[int]] = []
    late: list[frozenset[int]] = []
    both: list[tuple[frozenset[int], frozenset[int]]] = []

    @consuming(consumer="others")
    def others(batch: SparkBatch) -> int:
        return batch.event_count

    @dg.multi_asset(
        outs={"one": dg.AssetOut(), "two": dg.AssetOut()},
        ins={name: dg.AssetIn(metadata=NEW) for name in ("numbers", "others")},
    )
    def joined(numbers, others):  # type: ignore[no-untyped-def]
        both.append((numbers, others))
        yield dg.Output(1, "one")
        if len(both) == 2:
            raise ValueError("boom")
        yield dg.Output(1, "two")

    def run(*assets: Any) -> dg.ExecuteInProcessResult:
        kept = {"manager": pair.manager, "instance": pair.instance}
        sources = [each.to_source_asset() for each in (counted, others) if each not in assets]
        return pair.orders.run(*assets, *sources, selection=list(assets), **kept)

    pair.orders.client.register_consumer("orders", "others")
    one = pair.store_batch()
    pair.run(report_to(early.append, "early"))
    other = int(values(materialized(run(others))[0])["pgque/batch_id"])
    run(joined)
    two = pair.store_batch()
    pair.run(report_to(early.append, "early"))
    pair.run(report_to(late.append, "late"))
    # The record of its first output exists, and that of the second one does not.
    assert not run(joined).success
    assert run(joined).success
    assert run(joined).success

    nothing: frozenset[int] = frozenset()
    assert early == [{one}, {two}]
    assert late == [{one, two}]
    assert both == [({one}, {other}), ({two}, nothing), ({two}, nothing), (nothing, nothing)]


def test_a_materialization_that_becomes_visible_late_is_new(
    orders: Orders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[frozenset[int]] = []
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        pair = Pair(orders, instance)
        one, two, three = (pair.store_batch() for _ in range(3))
        with hidden_event(instance, tmp_path, two):
            assert pair.run(report_to(read.append)).success
        assert pair.run(report_to(read.append)).success
        # What is older than a transaction may take is recorded by one number.
        monkeypatch.setattr("pgque_dagster.assets.new_batches._VISIBLE_AFTER", timedelta())
        four = pair.store_batch()
        assert pair.run(report_to(read.append)).success
        made = instance.get_latest_materialization_event(dg.AssetKey("report"))
        assert pair.run(report_to(read.append)).success

    assert read == [{one, three}, {two}, {four}, set()]
    assert made is not None and made.asset_materialization is not None
    assert made.asset_materialization.metadata[RECORD].value["more"] == []  # type: ignore[index]


@contextmanager
def hidden_event(instance: dg.DagsterInstance, home: Path, batch_id: int) -> Iterator[None]:
    """Makes a materialization invisible, as that of a transaction in progress is."""
    key = dg.AssetKey("numbers")
    found = instance.fetch_materializations(key, limit=100).records
    (number,) = (each.storage_id for each in found if batch_of(each) == batch_id)

    def rename(asset: str) -> None:
        with closing(sqlite3.connect(home / "history" / "runs" / "index.db")) as db, db:
            statement = "update event_logs set asset_key = ? where id = ?"
            assert db.execute(statement, (dg.AssetKey(asset).to_string(), number)).rowcount == 1

    rename("hidden")
    yield
    rename("numbers")


def test_what_an_asset_was_before_it_recorded_is_looked_through_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[object] = []
    fetch = dg.DagsterInstance.fetch_materializations

    def counting(instance: dg.DagsterInstance, wanted: Any, *arguments: Any) -> Any:
        pages.extend([wanted] * (wanted == dg.AssetKey("report")))
        return fetch(instance, wanted, *arguments)

    monkeypatch.setattr("pgque_dagster.assets.new_batches._PAGE", 2)
    for _ in range(20):
        pair.instance.report_runless_asset_event(dg.AssetMaterialization("report"))
    pair.store_batch()
    monkeypatch.setattr(dg.DagsterInstance, "fetch_materializations", counting)
    read: list[frozenset[int]] = []
    looked_up: list[int] = []
    for _ in range(2):
        pages.clear()
        assert pair.run(report_to(read.append)).success
        looked_up.append(len(pages))

    assert list(map(len, read)) == [1, 0]
    assert looked_up[0] > 9
    assert looked_up[1] < 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:1])
def test_each_batch_is_recorded_once_whatever_fails_and_whoever_runs_at_once(
    orders: Orders, tmp_path: Path, seed: int
) -> None:
    """Upstream and downstream run at once, each as Dagster requests them, and fail at random."""
    chance = random.Random(seed)
    # Four batches at least are acked, whatever the other thread takes from `chance`.
    upstream_faults = ["none", "none", "compute", "ack"] * 3
    random.Random(seed).shuffle(upstream_faults)
    kept: dict[int, int] = {}

    def keep(found: frozenset[int]) -> None:
        fault = chance.choice(["none", "none", "before", "after"])
        if fault == "before":
            raise ValueError(fault)
        for each in found:
            kept[each] = kept.get(each, 0) + 1
        if fault == "after":
            for each in found:
                kept[each] -= 1
            raise ValueError(fault)

    @consuming(name="numbers")
    def failing(batch: SparkBatch) -> int:
        fault = upstream_faults.pop()
        if fault == "compute":
            raise ValueError(fault)
        if fault == "ack":
            batch.claim.before_ack(lost)
        return batch.event_count

    in_postgres = {"storage": {"postgres": {"postgres_url": orders.client.url}}}
    with dg.DagsterInstance.local_temp(str(tmp_path), in_postgres) as instance:
        pair = Pair(orders, instance)
        pair.upstream = failing
        report = report_to(keep)
        defs = dg.Definitions([failing, report], resources=dict(orders.resources))
        done = threading.Event()

        def upstream() -> None:
            for number in range(10):
                orders.publish([{"number": number}])
                orders.run(failing, manager=pair.manager, instance=instance)
            done.set()

        def downstream() -> None:
            cursor = None
            while not done.wait(0.1):
                found = dg.evaluate_automation_conditions(defs, instance, cursor=cursor)
                cursor = found.cursor
                if found.total_requested or chance.random() < 0.2:
                    pair.run(report)

        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(upstream), pool.submit(downstream)]:
                future.result()
        while not pair.run(report).success:
            pass
        key = failing.key
        records = instance.fetch_materializations(key, limit=1000, ascending=True).records
        stored = [batch_of(each) for each in records]
        had = [batch_id for batches in recorded(instance) for batch_id in batches]

    assert len(set(stored)) > 3
    assert set(had) == set(stored) == kept.keys()
    # Again only if it was stored again.
    assert Counter(had) <= Counter(stored)
    assert kept == Counter(had)

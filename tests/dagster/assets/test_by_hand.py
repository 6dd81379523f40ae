"""Runs that no sensor requested, and consumers that are not what a run expects."""

import re
from pathlib import Path

import dagster as dg
import pytest

from pgque_dagster import build_pgque_sensor, pgque_asset
from tests.dagster.location import execute
from tests.dagster.orders import Orders, error_of, texts
from tests.dagster.support import StoringIOManager
from tests.support.dagster.sensing import evaluate, the_request

revenue = pgque_asset(queue="orders", name="revenue")(texts)


def by_hand(orders: Orders, asset: dg.AssetsDefinition = revenue) -> list[list[str]]:
    """Returns what a run without tags stores."""
    store = StoringIOManager()
    assert orders.run(asset, manager=store).success
    return store.stored


def test_a_run_without_a_batch_says_how_many_events_wait_for_a_tick(
    orders: Orders, capfd: pytest.CaptureFixture[str]
) -> None:
    assert by_hand(orders) == []
    assert "Skipped: orders/revenue has no batch yet.\n" in capfd.readouterr().err
    orders.client.send_batch("orders", ["a", "b"])

    assert by_hand(orders) == []
    assert re.search(
        r"Skipped: orders/revenue has no batch yet, up to 2 events wait for a tick, the first for "
        r"\d+ s: check that `pgque ticker`, the ticker sensor or pg_cron runs, and that the queue "
        r"is not paused\.",
        capfd.readouterr().err,
    )


def test_a_run_whose_consumer_was_removed_fails_and_registers_no_other(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    orders.publish(["a"])
    request = the_request(evaluate(build_pgque_sensor([revenue]), orders.client.url, instance))
    orders.client.unregister_consumer("orders", "revenue", skip=True)

    error = error_of(orders.run(revenue, tags=dict(request.tags)))

    batch_id = request.tags["pgque/batch_id"]
    assert f"orders/revenue was removed while its batch {batch_id} waited for this run" in error
    assert "pgque register orders revenue --start-at earliest" in error
    assert orders.consumers() == []
    # A run by hand registers it, in a new queue at its first tick.
    assert by_hand(orders) == [["a"]]
    assert orders.consumers() == ["revenue"]


CHECKED = """
import dagster as dg
from pgque_dagster import PgqueResource, pgque_asset

@pgque_asset(queue='orders')
def revenue(batch) -> None: pass

@dg.asset_check(asset='revenue', blocking=True)
def sane(): return dg.AssetCheckResult(passed=True)

@dg.asset_check(asset='revenue')
def pretty(): return dg.AssetCheckResult(passed=True)

defs = dg.Definitions(
    assets=[revenue],
    asset_checks=[sane, pretty],
    executor=dg.in_process_executor,
    resources={'pgque': PgqueResource(url=dg.EnvVar('PGQUE_URL')), 'pyspark': None},
)
"""


def test_a_run_warns_of_a_blocking_check_that_runs_after_the_ack(
    orders: Orders,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PGQUE_URL", orders.client.url)

    assert execute(instance, tmp_path / "checked.py", CHECKED, select="revenue").success

    told = capfd.readouterr().err
    assert "blocking checks that run after the ack: sane of revenue. A batch" in told


SHOP = """
import dagster as dg
from pgque_dagster import PgqueResource, pgque_asset

def asset(name, consumer):
    @pgque_asset(queue='orders', name=name, consumer=consumer)
    def body(batch) -> None: pass
    return body

defs = dg.Definitions(
    assets=[asset('one', 'revenue'), asset('two', 'revenue'), asset('other', 'stock')],
    executor=dg.in_process_executor,
    resources={'pgque': PgqueResource(url=dg.EnvVar('PGQUE_URL')), 'pyspark': None},
)
"""


def test_a_run_fails_where_another_asset_of_the_code_location_has_its_consumer(
    orders: Orders,
    tmp_path: Path,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PGQUE_URL", orders.client.url)
    orders.publish(["a"])
    orders.client.register_consumer("orders", "stock")  # which has nothing to do

    execute(instance, tmp_path / "shop.py", SHOP, select="one")  # fails without Spark
    sharing = execute(instance, tmp_path / "shop.py", SHOP, select="two")
    told = capfd.readouterr().err
    alone = execute(instance, tmp_path / "shop.py", SHOP, select="other")

    assert not sharing.success
    assert "asset one, since" in told and "asset two\n" in told
    assert alone.success
    assert not orders.is_consumed()

"""Two assets never share a consumer: not by materialize, nor in one code location, nor in two."""

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob  # noqa: PLC2701
from dagster._core.execution.api import execute_run  # noqa: PLC2701

from pgque_dagster import SparkBatch, build_pgque_sensor, pgque_asset
from pgque_dagster.client import Client
from pgque_dagster.client.consumer import Consumer
from pgque_dagster.client.errors import CallRefused
from pgque_dagster.project import deployment
from tests.dagster.orders import Orders, error_of
from tests.support.dagster.sensing import remote_origin


def team(prefix: str) -> dg.AssetsDefinition:
    @pgque_asset(queue="orders", key_prefix=prefix)
    def revenue(batch: SparkBatch) -> int:
        return batch.event_count

    return revenue


def other_asset() -> dg.AssetsDefinition:
    @pgque_asset(queue="orders")
    def stock(batch: SparkBatch) -> int:
        return batch.event_count

    return stock


def location(
    orders: Orders, *assets: dg.AssetsDefinition, also: Sequence[dg.AssetSpec] = ()
) -> dg.Definitions:
    sensors = [
        build_pgque_sensor([each], name=f"sensor_{n}", tick_wait=timedelta(0))
        for n, each in enumerate(assets)
    ]
    return dg.Definitions(
        assets=[*assets, *also],
        sensors=sensors,
        resources=orders.resources,
        executor=dg.in_process_executor,
    )


def evaluate(
    orders: Orders,
    instance: dg.DagsterInstance,
    name: str,
    *assets: dg.AssetsDefinition,
    also: Sequence[dg.AssetSpec] = (),
) -> list[str | int]:
    """Evaluates each sensor of a code location, in a process that was just started."""
    deployment._noted.clear()
    defs = location(orders, *assets, also=also)
    found: list[str | int] = []
    for number in range(len(assets)):
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            last_tick_completion_time=None,
            last_run_key=None,
            cursor=None,
            repository_name="__repository__",
            repository_def=defs.get_repository_def(),
            instance=instance,
            code_location_origin=remote_origin("j", name).repository_origin.code_location_origin,
        )
        sensor = defs.get_sensor_def(f"sensor_{number}")
        result = sensor(context, pgque=orders.resources["pgque"])
        found.append(
            str(result.skip_message)
            if isinstance(result, dg.SkipReason)
            else len(result.run_requests)
        )
    return found


def run_in(
    orders: Orders, instance: dg.DagsterInstance, name: str, asset: dg.AssetsDefinition
) -> list[dg.DagsterEvent]:
    """Executes a run as Dagster does for a code location."""
    job = location(orders, asset).resolve_implicit_global_asset_job_def()
    run = instance.create_run_for_job(job, remote_job_origin=remote_origin(job.name, name))
    execute_run(InMemoryJob(job), run, instance, raise_on_error=False)
    return [each.dagster_event for each in instance.all_logs(run.run_id) if each.dagster_event]


def failure(events: Sequence[dg.DagsterEvent]) -> str | None:
    failed = [each for each in events if each.is_step_failure]
    return str(failed[0].step_failure_data.error) if failed else None


def problems(client: Client) -> dict[str, str]:
    return {
        row.check: row.detail for row in client.health() if row.check.startswith("consumer_asset")
    }


def test_materialize_refuses_a_second_asset_before_it_takes_anything(orders: Orders) -> None:
    one, two = team("team_a"), team("team_b")
    orders.publish(["a"])
    assert orders.run(one).success
    orders.publish(["b"])

    refused = orders.run(two)

    assert not refused.success
    told = error_of(refused)
    assert "asset team_a/revenue, since" in told
    assert "asset team_b/revenue" in told
    assert "another consumer" in told
    assert orders.is_free()
    assert orders.run(one).success
    assert orders.is_consumed()


def test_two_code_locations_do_not_share_a_consumer(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    team_a, team_b = team("team_a"), team("team_b")
    orders.publish(["a"])
    assert evaluate(orders, instance, "a", team_a) == [1]

    (skipped,) = evaluate(orders, instance, "b", team_b)
    told = failure(run_in(orders, instance, "b", team_b))

    for words in ('location "a", asset team_a/revenue', 'location "b", asset team_b'):
        assert words in str(skipped)
        assert told is not None and words in told
    assert orders.is_free()
    assert failure(run_in(orders, instance, "a", team_a)) is None
    assert orders.is_consumed()


def test_a_copied_project_under_another_name_is_refused(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    orders.publish(["a"])
    assert failure(run_in(orders, instance, "shop", team("team"))) is None
    orders.publish(["b"])

    told = failure(run_in(orders, instance, "shop_copy", team("team")))

    assert told is not None
    assert 'this is deployment "' in told
    assert 'location "shop_copy"' in told
    assert not orders.is_consumed()


def test_health_says_at_once_that_an_asset_was_renamed(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    orders.publish(["a"])
    evaluate(orders, instance, "shop", team("old"))
    assert problems(orders.client) == {}

    (skipped,) = evaluate(orders, instance, "shop", team("new"))

    assert "asset new/revenue" in str(skipped)
    assert "asset old/revenue, which is gone" in problems(orders.client)["consumer_asset:revenue"]


def test_health_says_that_an_asset_moved_to_another_location_which_this_one_names_still(
    orders: Orders, instance: dg.DagsterInstance
) -> None:
    orders.publish(["a"])
    moved, other = team("team"), other_asset()
    evaluate(orders, instance, "shop", moved)

    evaluate(orders, instance, "shop", other, also=list(moved.specs))

    assert "asset team/revenue, which is gone" in problems(orders.client)["consumer_asset:revenue"]


def test_a_program_does_not_share_the_consumer_of_an_asset(orders: Orders) -> None:
    orders.publish(["a"])
    assert orders.run(team("team_a")).success
    program = Consumer(orders.client.url, "orders", "revenue")
    program.on()(lambda message: None)
    program.stop()  # ends `run` at once if it is not refused

    with pytest.raises(CallRefused, match=r"belongs to .*asset team_a/revenue"):
        program.run()

"""A second Dagster on the same database consumes nothing until a consumer is moved to it."""

from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource, build_pgque_sensor
from pgque_dagster.client import Client
from pgque_dagster.client.models import ConsumingAsset
from pgque_dagster.client.registrations import move_to_deployment
from pgque_dagster.project.deployment import deployment_name
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.dagster.assets import revenue
from tests.support.queues.events import publish

SENSOR = build_pgque_sensor([revenue])


def evaluate(url: str, deployment: str, instance: dg.DagsterInstance) -> object:
    context = dg.build_sensor_context(instance=instance)
    result = SENSOR(context, pgque=PgqueResource(url=url, deployment=deployment))
    if isinstance(result, dg.SkipReason):
        return result.skip_message
    return len(result.run_requests)


def run_by_hand(url: str, deployment: str, spark: SparkSession) -> dg.ExecuteInProcessResult:
    return dg.materialize(
        [revenue],
        resources={
            "pgque": PgqueResource(url=url, deployment=deployment),
            "pyspark": SessionHolder(spark),
            "io_manager": StoringIOManager(),
        },
        raise_on_error=False,
    )


def test_another_deployment_consumes_nothing_until_the_consumer_is_moved_to_it(
    client: Client, spark: SparkSession, instance: dg.DagsterInstance
) -> None:
    publish(client, ["a"])
    assert evaluate(client.url, "production", instance) == 1

    refused = evaluate(client.url, "laptop", instance)
    by_hand = run_by_hand(client.url, "laptop", spark)

    for words in (
        'orders/revenue: consumer "revenue" on queue "orders" belongs to deployment "production"',
        'this is deployment "laptop"',
        "select pgque.move_to_deployment('orders', 'revenue', 'laptop', NULL, '{revenue}')",
    ):
        assert words in str(refused)
    assert not by_hand.success
    lease = client.lease_info("orders", "revenue")
    assert lease is not None and (lease.owner, lease.epoch) == (None, 0)

    client.run(move_to_deployment("orders", "revenue", ConsumingAsset("laptop")))

    assert run_by_hand(client.url, "laptop", spark).success
    assert client.lease_info("orders", "revenue") is None
    assert 'belongs to deployment "laptop"' in str(evaluate(client.url, "production", instance))


def test_a_persistent_instance_has_a_name_of_its_own_that_its_processes_share(
    tmp_path: Path,
) -> None:
    homes = [tmp_path / "one", tmp_path / "one", tmp_path / "two"]
    for home in homes:
        home.mkdir(exist_ok=True)

    first, again, other = [
        deployment_name(dg.DagsterInstance.local_temp(str(home))) for home in homes
    ]

    assert first == again
    assert first != other


def test_a_temporary_instance_is_named_after_its_folder_so_that_a_restart_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        (tmp_path / f".tmp_dagster_home_{number}").mkdir()
    names = {
        deployment_name(dg.DagsterInstance.local_temp(f"{tmp_path}/.tmp_dagster_home_1")),
        deployment_name(dg.DagsterInstance.local_temp(f"{tmp_path}/.tmp_dagster_home_2")),
        deployment_name(dg.DagsterInstance.ephemeral()),
    }

    (name,) = names
    assert name.endswith(f":{tmp_path}")


def test_in_dagster_plus_the_name_is_that_of_the_deployment(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_CLOUD_DEPLOYMENT_NAME", "prod")

    assert PgqueResource(url="postgresql://host/db").deployment_of(instance) == "prod"
    # On the embedded server, nobody is refused.
    assert PgqueResource().deployment_of(instance) is None

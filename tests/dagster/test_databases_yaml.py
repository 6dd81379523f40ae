"""Two databases in the components of one project."""

from traceback import format_exception
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from pgque_dagster import PgqueResource
from pgque_dagster.client import Client
from pgque_dagster.spark import ParquetSink
from tests.dagster.conftest import BILLING, DEFAULT
from tests.support.dagster.dg_project import DgProject
from tests.support.queues.events import publish

TRANSFORM = """\
def payloads(batch):
    return batch.events(["ev_data"])
"""


def component(kind: str, **attributes: Any) -> str:
    """A component in YAML; its database is left out if it is the default one."""
    lines = [f"  {name}: {value}" for name, value in attributes.items() if value != DEFAULT]
    body = ["attributes:", *lines] if lines else []
    return "\n".join([f"type: pgque_dagster.{kind}", *body, ""])


def declare(project: DgProject, name: str, url: str) -> None:
    """Declares a database, its queue orders and the consumer revenue."""
    project.write(f"{name}_db", component("PgqueComponent", database=name, url=f"'{url}'"))
    project.write(f"{name}_orders", component("QueueComponent", database=name, queue="orders"))
    project.write(
        f"{name}_revenue",
        component(
            "BatchConsumerComponent",
            database=name,
            queue="orders",
            transform=".transform.payloads",
            consumer="revenue",
            name="revenue",
            key_prefix=f"[{name}_tables]",
            sink=f"{{base_dir: '{project.folder}/output'}}",
            sensor="{min_events: 0, max_age: 0s}",
            consumer_lag_checks="{max_lag: 1m}",
        ),
    )
    (project.defs / f"{name}_revenue" / "transform.py").write_text(TRANSFORM)


def test_two_databases_in_yaml(
    project: DgProject, two_clients: dict[str, Client], spark: SparkSession
) -> None:
    for name, client in two_clients.items():
        declare(project, name, client.url)
        publish(client, [f"of {name}"])

    definitions = project.load()

    repository = definitions.get_repository_def()
    names = {sensor.name for sensor in repository.sensor_defs}
    assert names == {
        *("orders_observation", "revenue_sensor"),
        *("billing__orders_observation", "billing__revenue_sensor"),
    }
    assert repository.has_job("orders_checks")
    assert repository.has_job("billing__orders_checks")
    instance = dg.DagsterInstance.ephemeral()
    job = definitions.resolve_implicit_global_asset_job_def()
    resources = {name: PgqueResource(url=client.url) for name, client in two_clients.items()}
    for name in two_clients:
        prefix = "" if name == DEFAULT else f"{name}__"
        context = dg.build_sensor_context(
            instance=instance, resources=resources, repository_def=repository
        )
        (request,) = repository.get_sensor_def(f"{prefix}revenue_sensor")(context).run_requests
        done = job.execute_in_process(
            asset_selection=request.asset_selection, instance=instance, tags=request.tags
        )
        assert done.success
        stored = ParquetSink(f"{project.folder}/output/{name}_tables/revenue").read(spark)
        assert [row.ev_data for row in stored.collect()] == [f"of {name}"]
        checks = definitions.resolve_job_def(f"{prefix}orders_checks").execute_in_process(
            instance=instance
        )
        found = checks.get_asset_check_evaluations()
        assert {each.asset_key.path[0] for each in found} == {name}
        assert "consumer_lag_revenue" in {each.check_name for each in found}


def told(project: DgProject) -> str:
    """The messages of the error that refuses the project, and of its causes."""
    with pytest.raises(Exception) as raised:
        project.load().get_repository_def()
    return "".join(format_exception(raised.value))


def test_yaml_that_does_not_fit_together_is_refused(project: DgProject) -> None:
    declare(project, DEFAULT, "postgresql://localhost/none")
    project.write("lost", component("QueueComponent", database=BILLING, queue="orders"))
    assert "'billing'" in told(project)

    project.write("billing", component("PgqueComponent", database=BILLING))
    assert "billing__orders_checks" in {
        job.name for job in project.load().get_repository_def().get_all_jobs()
    }

    project.replace("lost", "queue: orders", "queue: returns")
    project.write(
        "reader",
        component(
            "BatchConsumerComponent",
            database=BILLING,
            queue="orders",
            transform="math.sqrt",
            name="reader",
        ),
    )
    assert "to `queues` of the PgqueComponent of database billing" in told(project)

    project.replace("reader", "queue: orders", "queue: returns")
    assert project.load().get_repository_def().has_job("billing__returns_checks")


def test_only_one_component_has_settings_of_the_session(project: DgProject) -> None:
    config = "{spark.master: 'local[2]'}"
    project.write("pgque", component("PgqueComponent"))
    project.write("billing", component("PgqueComponent", database=BILLING, spark_config=config))
    (session,) = [
        each for key, each in (project.load().resources or {}).items() if key == "pyspark"
    ]
    assert session.spark_config == {"spark.master": "local[2]"}

    project.replace(
        "pgque", "PgqueComponent", f"PgqueComponent\nattributes:\n  spark_config: {config}"
    )
    assert "the PgqueComponents of billing and pgque have spark_config" in told(project)

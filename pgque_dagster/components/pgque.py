"""`PgqueComponent`: the database of the queues; a project has one."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Self

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, model_validator

from ..checks.alerts import Alert, build_pgque_alerts
from ..jobs.queue_jobs import build_pgque_jobs
from ..project.resource import PgqueResource
from ..sensors.ticker_sensor import build_pgque_ticker_sensor
from .batch_consumer import BatchConsumerComponent
from .mirror import mirror
from .options import option, positive
from .queue import QueueComponent, all_components
from .scaffolding import PgqueScaffolder
from .transforms import load_function
from .window import WindowComponent

_VARIABLE = re.compile(r"\{\{\s*env(?:\.(\w+)|\(\s*['\"](\w+)['\"]\s*\))\s*\}\}")


def _read_url(context: dg.ResolutionContext, value: str | None) -> str | None:
    """Reads the URL; an environment variable stays an EnvVar, so that its value is not shown."""
    if value is None:
        return None
    if found := _VARIABLE.fullmatch(value.strip()):
        return dg.EnvVar(found[1] or found[2])
    if re.search(r"\{\{.*\benv\b", value):
        raise ValueError(
            "a url that contains environment variables would be shown with their values: "
            "put the whole URL into one variable, and write url: '{{ env.PGQUE_URL }}'"
        )
    return context.resolve_value(value, as_type=str)


class TickerSensorOptions(mirror(build_pgque_ticker_sensor)):
    """Options of `build_pgque_ticker_sensor`."""


class AlertOptions(
    mirror(build_pgque_alerts, leave_out=["queues"], max_lag=positive, interval=positive)
):
    """Options of `build_pgque_alerts`, for all queues of the project."""

    notify: Annotated[
        Callable[[Alert], object],
        dg.Resolver(
            load_function,
            model_field_type=str,
            description="The import path of the function that is called with each alert. A leading "
            "dot stands for the folder of this file.",
            examples=[".alerts.to_slack", "my_project.alerts.to_slack"],
        ),
    ]


@dg.scaffold_with(PgqueScaffolder)
class PgqueComponent(mirror(PgqueResource), dg.Component):
    """The database of the queues: the resource `pgque`, the Spark session of consumers, the jobs.

    A project has one. It creates the queues of all QueueComponents that do not exist.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.PgqueComponent
            attributes:
              url: "{{ env.PGQUE_URL }}"
              spark_config:
                spark.master: local[2]
            requirements:
              env: [PGQUE_URL]
    """

    url: Annotated[
        dg.EnvVar | str | None,
        dg.Resolver(
            _read_url,
            inject_before_resolve=False,
            model_field_type=str | None,
            description="libpq URI or connection string, preferably an environment variable, which "
            "is read when it is needed and never shown. If left out, the embedded PostgreSQL of "
            "the project folder is started.",
            examples=["{{ env.PGQUE_URL }}"],
        ),
    ] = None
    spark_config: Annotated[
        dict[str, Any] | None,
        option(
            "Settings of the Spark session, such as `spark.master`, or `spark.remote` with the URL "
            "of a Spark Connect server; null if you define the resource `pyspark` yourself.",
            {"spark.master": "local[2]"},
        ),
    ] = Field(default={})
    ticker_sensor: Annotated[
        TickerSensorOptions, option("The sensor that ticks, if `ticking` is sensor.")
    ] = TickerSensorOptions()
    alerts: Annotated[
        AlertOptions | None,
        option("Alerts on problems with the queues; if left out, there are none."),
    ] = None

    @model_validator(mode="after")
    def _check_session(self) -> Self:
        if {"spark.remote", "spark.master"} <= (self.spark_config or {}).keys():
            raise ValueError(
                "spark_config has spark.remote and spark.master: leave out spark.master, which is "
                "a setting of the Spark Connect server"
            )
        return self

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Builds the resources, the jobs, and the ticker and alert sensors."""
        options = {name: getattr(self, name) for name in PgqueResource.model_fields}
        named = [queue.queue for queue in all_components(context, QueueComponent)]
        named = [*self.queues, *self.queue_options, *named]
        options["queues"] = list(dict.fromkeys(named))
        consumers = list(all_components(context, BatchConsumerComponent))
        _check_consumers(consumers, options["queues"])
        for window in all_components(context, WindowComponent):
            _check_declared(f"asset {window.asset_name}", window.queue, options["queues"])
        resources: dict[str, Any] = {"pgque": PgqueResource(**options)}
        if self.spark_config is not None:
            resources["pyspark"] = LazyPySparkResource(spark_config=self.spark_config)
        sensors = (
            [build_pgque_ticker_sensor(**self.ticker_sensor.arguments())]
            if self.ticking == "sensor"
            else []
        )
        if self.alerts is not None:
            sensors.append(build_pgque_alerts(options["queues"], **self.alerts.arguments()))
        return dg.Definitions(resources=resources, jobs=build_pgque_jobs(), sensors=sensors)


def _check_consumers(consumers: Iterable[BatchConsumerComponent], queues: list[str]) -> None:
    names = Counter((consumer.queue, consumer.consumer_name) for consumer in consumers)
    for (queue, consumer), count in names.items():
        if count > 1:
            raise dg.DagsterInvalidDefinitionError(
                f"{count} components share the consumer {queue}/{consumer}: give each asset its "
                "own consumer"
            )
        _check_declared(f"consumer {consumer}", queue, queues)


def _check_declared(who: str, queue: str, queues: list[str]) -> None:
    if queue not in queues:
        raise dg.DagsterInvalidDefinitionError(
            f"{who} is on queue {queue!r}, which is not declared: add a QueueComponent for it, or "
            f"add {queue} to `queues` of the PgqueComponent"
        )

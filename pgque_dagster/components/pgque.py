"""`PgqueComponent`: a database with queues; a project has one component for each database."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Self

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pydantic import Field, model_validator

from ..checks.alerts import Alert, build_pgque_alerts
from ..jobs.queue_jobs import build_pgque_jobs
from ..project.consumers import refuse_shared
from ..project.database import DEFAULT, Database
from ..project.resource import PgqueResource
from ..sensors.ticker_sensor import build_pgque_ticker_sensor
from .consuming import Consuming, all_components
from .options import built, mirror, option
from .queue import QueueComponent
from .scaffolding import PgqueScaffolder
from .table_replica import TableReplicaComponent
from .transforms import function_option
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


class TickerSensorOptions(mirror(build_pgque_ticker_sensor, leave_out=["database"])):
    """Options of `build_pgque_ticker_sensor`."""


class AlertOptions(mirror(build_pgque_alerts, leave_out=["queues", "database"])):
    """Options of `build_pgque_alerts`, for all queues of the database."""

    notify: Annotated[
        Callable[[Alert], object],
        function_option(
            "the function that is called with each alert",
            *(".alerts.to_slack", "my_project.alerts.to_slack"),
        ),
    ]


@dg.scaffold_with(PgqueScaffolder)
class PgqueComponent(mirror(PgqueResource), dg.Component):
    """A database with queues: its resource, the jobs on it, and the Spark session of consumers.

    A project has one for each of its databases. It creates missing queues of the database's
    QueueComponents and TableReplicaComponents.

    Example:
        .. code-block:: yaml

            type: pgque_dagster.PgqueComponent
            attributes:
              url: "{{ env.PGQUE_URL }}"
              spark_config:
                spark.master: local[2]
                spark.sql.shuffle.partitions: "2"
            requirements:
              env: [PGQUE_URL]
    """

    database: Annotated[
        str,
        option(
            "The key of the resource, by which queues and consumers name the database. Only the "
            "default one's sensors and jobs have names without it.",
            "billing",
        ),
    ] = DEFAULT
    url: Annotated[
        dg.EnvVar | str | None,
        dg.Resolver(
            _read_url,
            inject_before_resolve=False,
            model_field_type=str | None,
            description="libpq URI or connection string, preferably an environment variable. It "
            "is read when needed and never shown. If left out, the embedded PostgreSQL of the "
            "project folder is started.",
            examples=["{{ env.PGQUE_URL }}"],
        ),
    ] = None
    spark_config: Annotated[
        dict[str, Any] | None,
        option(
            "Settings of the Spark session, such as `spark.master`, or `spark.remote` with the URL "
            "of a Spark Connect server; null if you define the resource `pyspark` yourself. The "
            "databases share one session, so only one of them has settings.",
            {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"},
        ),
    ] = Field(default={})
    ticker_sensor: Annotated[
        TickerSensorOptions, option("The sensor that ticks, if `ticking` is sensor.")
    ] = TickerSensorOptions()
    alerts: Annotated[
        AlertOptions | None,
        option("Alerts on problems with all queues that the project names; by default none."),
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
        of = Database(self.database)
        declared = [
            *((each.database, each.queue) for each in all_components(context, QueueComponent)),
            *(
                (each.database, each.queue_name)
                for each in all_components(context, TableReplicaComponent)
            ),
        ]
        named = [queue for database, queue in declared if database == self.database]
        queues = list(dict.fromkeys([*self.queues, *self.queue_options, *named]))
        _check_consumers(context, of, queues)
        resources: dict[str, Any] = {
            of.name: PgqueResource(**{**self.arguments(), "queues": queues})
        }
        config = self._session_config(all_components(context, PgqueComponent))
        if config is not None:
            resources["pyspark"] = LazyPySparkResource(spark_config=config)
        ticker = self.ticker_sensor if self.ticking == "sensor" else None
        sensors = built(ticker, database=of.name) + built(self.alerts, queues, database=of.name)
        jobs = build_pgque_jobs(of.name)
        return dg.Definitions(resources=resources, jobs=jobs, sensors=sensors)

    def _session_config(self, components: "Sequence[PgqueComponent]") -> dict[str, Any] | None:
        """Returns the Spark settings if this component makes the session, or None.

        Args:
            components: the project's components; empty if this one is loaded alone.
        """
        wanting = [each for each in components if each.spark_config is not None]
        configured = [each.database for each in wanting if each.spark_config]
        if len(configured) > 1:
            raise dg.DagsterInvalidDefinitionError(
                f"the PgqueComponents of {' and '.join(configured)} have spark_config: leave it "
                "out of all but one, because the databases share one Spark session"
            )
        makers = configured or [each.database for each in wanting] or [self.database]
        return self.spark_config if makers[0] == self.database else None


def _check_consumers(
    context: dg.ComponentLoadContext, database: Database, queues: list[str]
) -> None:
    """Refuses a queue that is not declared, and a consumer that two assets share."""
    found = all_components(context, Consuming)
    consumers = [
        consumer
        for each in found
        for consumer in each.asset_consumers
        if consumer.database == database
    ]
    readers = [(f"consumer {each.name}", each.queue) for each in consumers]
    windows = [
        (f"asset {each.asset_name}", each.queue)
        for each in all_components(context, WindowComponent)
        if database.name in (each.databases or [each.database])
    ]
    for who, queue in [*readers, *windows]:
        if queue not in queues:
            raise dg.DagsterInvalidDefinitionError(
                f"{who} is on queue {queue!r}, which is not declared: add a QueueComponent for it, "
                f"or add {queue} to `queues` of the PgqueComponent of database {database.name}"
            )
    for consumer in consumers:
        refuse_shared(str(consumer), consumers)

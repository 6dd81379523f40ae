"""The scaffolders of `dg scaffold defs`: they write YAML that works as it is."""

from datetime import UTC, datetime
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

_OUTPUT = "{{ context.project_root }}/output"
_TRANSFORM = '''\
"""Computes the asset {name}."""

from pyspark.sql import DataFrame


def transform(events: DataFrame) -> DataFrame:
    """Counts the events of each type."""
    return events.groupBy("ev_type").count()
'''


class PgqueScaffolder(dg.Scaffolder[Any]):
    """Writes a PgqueComponent that ticks by itself."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes it in the form asked for."""
        dg.scaffold_component(
            request,
            {
                "install": "if_missing",
                "ticking": "sensor",
                "ticker_sensor": {"default_status": "RUNNING"},
                "spark_config": {"spark.master": "local[2]"},
            },
        )


class QueueScaffolder(dg.Scaffolder[Any]):
    """Writes a QueueComponent for the queue with the name of the folder."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes it in the form asked for."""
        dg.scaffold_component(request, {"queue": request.target_path.name})


class ConsumerParams(BaseModel):
    """Options of the commands that scaffold a consumer, or an asset of windows."""

    queue: str | None = Field(
        default=None, description="The queue to read; by default the name of the folder."
    )


class BatchConsumerScaffolder(dg.Scaffolder[ConsumerParams]):
    """Writes a BatchConsumerComponent that stores Parquet, and its transform."""

    @classmethod
    def get_scaffold_params(cls) -> type[ConsumerParams]:
        """Returns the options of the command."""
        return ConsumerParams

    def scaffold(self, request: dg.ScaffoldRequest[ConsumerParams]) -> None:
        """Writes it in the form asked for."""
        folder = request.target_path.name
        name = folder.replace("-", "_").replace(".", "_")
        attributes = {
            "queue": request.params.queue or folder,
            "name": name,
            "transform": ".transform.transform",
            **self.more(),
            "sink": {"type": "parquet", "base_dir": _OUTPUT},
        }
        dg.scaffold_component(request, attributes)
        if request.scaffold_format == "yaml":
            (request.target_path / "transform.py").write_text(_TRANSFORM.format(name=name))

    def more(self) -> dict[str, Any]:
        """Returns the attributes that a consumer does not share with a window."""
        return {"sensor": {"max_age": "60s"}}


class WindowScaffolder(BatchConsumerScaffolder):
    """Writes a WindowComponent of daily windows, from today on, and its transform."""

    def more(self) -> dict[str, Any]:
        """Returns the windows."""
        today = datetime.now(UTC).date()
        return {
            "partitions_def": f"{{{{ dg.DailyPartitionsDefinition(start_date='{today}') }}}}",
            "retry_policy": {"max_retries": 3, "delay": "1m"},
        }


class TableReplicaParams(BaseModel):
    """Options of the command that scaffolds replicas."""

    tables: str = Field(description="The tables, with commas: public.orders,public.customers.")


class TableReplicaScaffolder(dg.Scaffolder[TableReplicaParams]):
    """Writes a TableReplicaComponent, which runs from the start, for the tables that are named."""

    @classmethod
    def get_scaffold_params(cls) -> type[TableReplicaParams]:
        """Returns the options of the command."""
        return TableReplicaParams

    def scaffold(self, request: dg.ScaffoldRequest[TableReplicaParams]) -> None:
        """Writes it in the form asked for."""
        tables = [each.strip() for each in request.params.tables.split(",")]
        dg.scaffold_component(
            request,
            {
                "name": request.target_path.name,
                "tables": [each for each in tables if each],
                "target": {"type": "delta", "base_dir": "{{ context.project_root }}/lake"},
                "max_age": "60s",
                "max_lag": "5m",
                "verify_cron": "0 */6 * * *",
                "running": True,
            },
        )

"""The scaffolders of `dg scaffold defs`: they write YAML that works as it is.

The comments are the options' descriptions, which come from the Python API.
"""

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import dagster as dg
import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel, Field

from .options import Options, alternatives

_WIDTH = 100
_OUTPUT = "{{ context.project_root }}/output"
_TRANSFORM = '''\
"""Computes the asset {name}."""

from pyspark.sql import DataFrame


def transform(events: DataFrame) -> DataFrame:
    """Counts the events of each type in the batch."""
    return events.groupBy("ev_type").count()
'''


class _Scaffolder(dg.Scaffolder[Any]):
    """Writes a commented `defs.yaml`."""

    def attributes(self, request: dg.ScaffoldRequest[Any]) -> dict[str, Any]:
        """Returns the attributes to write. One whose name begins with `# ` is a suggestion."""
        raise NotImplementedError

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes it in the place and form asked for."""
        if request.scaffold_format == "python":
            dg.scaffold_component(request)
            return
        module, _, name = request.type_name.rpartition(".")
        component = getattr(import_module(module), name)
        summary = (inspect.getdoc(component) or "").partition("\n")[0]
        lines = [
            *_comment(summary),
            f"# All attributes: dg utils inspect-component {request.type_name}",
            f"type: {request.type_name}",
            "",
            "attributes:",
            *(f"  {line}".rstrip() for line in _lines(component, self.attributes(request))),
        ]
        (request.target_path / "defs.yaml").write_text("\n".join(lines) + "\n")


def _lines(options: type[Options], attributes: Mapping[str, Any]) -> Iterator[str]:
    fields = {each.alias or name: each for name, each in options.model().model_fields.items()}
    for index, (key, value) in enumerate(attributes.items()):
        name = key.removeprefix("# ")
        kind = isinstance(value, dict) and alternatives(options.model_fields[name].annotation)[0]
        if isinstance(kind, type) and issubclass(kind, Options):
            lines = [f"{name}:", *(f"  {line}" for line in _lines(kind, value))]
        else:
            lines = yaml.safe_dump({name: value}, sort_keys=False, width=_WIDTH).splitlines()
        if index:
            yield ""
        yield from _comment(fields[name].description or "")
        yield from (f"# {line}" for line in lines) if key != name else lines


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH - 6))


def _identifier(name: str) -> str:
    return name.replace("-", "_").replace(".", "_")


class PgqueScaffolder(_Scaffolder):
    """Writes a commented PgqueComponent."""

    def attributes(self, request: dg.ScaffoldRequest[Any]) -> dict[str, Any]:
        """Returns those of a project that ticks by itself."""
        return {
            "# url": "{{ env.PGQUE_URL }}",
            "install": "if_missing",
            "ticking": "sensor",
            "ticker_sensor": {"default_status": "RUNNING"},
            "spark_config": {"spark.master": "local[2]"},
        }


class QueueScaffolder(_Scaffolder):
    """Writes a commented QueueComponent for the queue with the name of the folder."""

    def attributes(self, request: dg.ScaffoldRequest[Any]) -> dict[str, Any]:
        """Returns the queue, and when it is looked at."""
        return {
            "queue": request.target_path.name,
            "observation": {"interval": "5m", "# default_status": "RUNNING"},
            "dead_letter_checks": {"max_dead_letters": 0},
            "check_schedule": {"cron_schedule": "*/5 * * * *", "# default_status": "RUNNING"},
        }


class ConsumerParams(BaseModel):
    """Options of the commands that scaffold a consumer, or an asset of windows."""

    queue: str | None = Field(
        default=None, description="The queue to read; by default the name of the folder."
    )


class BatchConsumerScaffolder(_Scaffolder):
    """Writes a commented BatchConsumerComponent and its transform."""

    @classmethod
    def get_scaffold_params(cls) -> type[ConsumerParams]:
        """Returns the options of the command."""
        return ConsumerParams

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes it in the place and form asked for."""
        super().scaffold(request)
        if request.scaffold_format == "yaml":
            name = _identifier(request.target_path.name)
            (request.target_path / "transform.py").write_text(_TRANSFORM.format(name=name))

    def attributes(self, request: dg.ScaffoldRequest[Any]) -> dict[str, Any]:
        """Returns those of a consumer that stores Parquet."""
        return {
            **self._computed(request),
            "# payload": {"schema": "product string not null, total double not null"},
            "sink": {"type": "parquet", "base_dir": _OUTPUT},
            "sensor": {"min_events": 1, "max_age": "60s", "# default_status": "RUNNING"},
        }

    def _computed(self, request: dg.ScaffoldRequest[Any]) -> dict[str, Any]:
        name = request.target_path.name
        return {
            "queue": getattr(request.params, "queue", None) or name,
            "name": _identifier(name),
            "transform": ".transform.transform",
        }


class WindowScaffolder(BatchConsumerScaffolder):
    """Writes a commented WindowComponent and its transform."""

    def attributes(self, request: dg.ScaffoldRequest[Any]) -> dict[str, Any]:
        """Returns those of an asset of daily windows, from today on."""
        today = datetime.now(UTC).date()
        return {
            **self._computed(request),
            "partitions_def": f"{{{{ dg.DailyPartitionsDefinition(start_date='{today}') }}}}",
            "sink": {"type": "parquet", "base_dir": _OUTPUT},
            "retry_policy": {"max_retries": 3, "delay": "1m"},
        }


class TableReplicaParams(BaseModel):
    """Options of the command that scaffolds replicas."""

    tables: str = Field(description="The tables, with commas: public.orders,public.customers.")


class TableReplicaScaffolder(_Scaffolder):
    """Writes a commented TableReplicaComponent for the tables that are named."""

    @classmethod
    def get_scaffold_params(cls) -> type[TableReplicaParams]:
        """Returns the options of the command."""
        return TableReplicaParams

    def attributes(self, request: dg.ScaffoldRequest[Any]) -> dict[str, Any]:
        """Returns those of replicas that run from the start."""
        tables = [each.strip() for each in request.params.tables.split(",")]
        return {
            "name": request.target_path.name,
            "tables": [each for each in tables if each],
            "target": {"type": "delta", "base_dir": "{{ context.project_root }}/lake"},
            "max_age": "60s",
            "max_lag": "5m",
            "verify_cron": "0 */6 * * *",
            "running": True,
        }

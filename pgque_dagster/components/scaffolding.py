"""The scaffolders of `dg scaffold defs`; they write the components that `pgque init` writes."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import yaml
from pydantic import BaseModel, Field

from ..project_files import with_names

_COMPONENTS = "shop/defs"


class DatabaseParams(BaseModel):
    """Options of the commands that scaffold components of a database."""

    database: str | None = Field(
        default=None,
        description="The key of the PgqueResource; by default the key of the default resource.",
    )

    def of_database(self) -> dict[str, str]:
        """Returns the attribute that names the database, unless it is the default one."""
        return {} if self.database is None else {"database": self.database}


class PgqueScaffolder(dg.Scaffolder[DatabaseParams]):
    """Writes a PgqueComponent that ticks on its own, and the instance with warm processes."""

    @classmethod
    def get_scaffold_params(cls) -> type[DatabaseParams]:
        """Returns the options of the command."""
        return DatabaseParams

    def scaffold(self, request: dg.ScaffoldRequest[DatabaseParams]) -> None:
        """Writes the component in the requested form."""
        names = {"shop/defs/pgque": _folder(request)}
        attributes = _attributes("pgque", names)
        if database := request.params.database:
            # The Spark session belongs to the default database.
            del attributes["spark_config"]
            url = f"{{{{ env.PGQUE_URL_{database.upper()} }}}}"
            attributes |= {"database": database, "url": url}
        dg.scaffold_component(request, attributes)
        for path in ("dagster.yaml", "compose.yaml"):
            _write_new(request, path, with_names(path, names))


class QueueScaffolder(dg.Scaffolder[DatabaseParams]):
    """Writes a QueueComponent for the queue with the name of the folder."""

    @classmethod
    def get_scaffold_params(cls) -> type[DatabaseParams]:
        """Returns the options of the command."""
        return DatabaseParams

    def scaffold(self, request: dg.ScaffoldRequest[DatabaseParams]) -> None:
        """Writes the component in the requested form."""
        attributes = _attributes("orders", {"orders": request.target_path.name})
        dg.scaffold_component(request, attributes | request.params.of_database())


class ConsumerParams(DatabaseParams):
    """Options of the commands that scaffold a consumer, or an asset of windows."""

    queue: str | None = Field(
        default=None, description="The queue to read; by default the name of the folder."
    )


class BatchConsumerScaffolder(dg.Scaffolder[ConsumerParams]):
    """Writes a BatchConsumerComponent that stores into Delta, its transform, and a test of it."""

    @classmethod
    def get_scaffold_params(cls) -> type[ConsumerParams]:
        """Returns the options of the command."""
        return ConsumerParams

    def scaffold(self, request: dg.ScaffoldRequest[ConsumerParams]) -> None:
        """Writes the component in the requested form."""
        folder = request.target_path.name
        name = folder.replace("-", "_").replace(".", "_")
        names = {"orders": request.params.queue or folder, "revenue": name}
        attributes = _attributes("revenue", names) | request.params.of_database()
        dg.scaffold_component(request, self.attributes(attributes))
        if request.scaffold_format == "yaml":
            transform = with_names(f"{_COMPONENTS}/revenue/transform.py", names)
            (request.target_path / "transform.py").write_text(transform)
            _write_test(request, names)

    def attributes(self, of_a_consumer: dict[str, Any]) -> dict[str, Any]:
        """Returns the attributes of the component, based on those of a consumer."""
        return of_a_consumer


class WindowScaffolder(BatchConsumerScaffolder):
    """Writes a WindowComponent of daily windows, from today on, its transform, and a test of it."""

    def attributes(self, of_a_consumer: dict[str, Any]) -> dict[str, Any]:
        """Returns the attributes with windows instead of a sensor."""
        today = datetime.now(UTC).date()
        return {
            **{name: value for name, value in of_a_consumer.items() if name != "sensor"},
            "partitions_def": f"{{{{ dg.DailyPartitionsDefinition(start_date='{today}') }}}}",
            "retry_policy": {"max_retries": 3, "delay": "1m"},
        }


def _attributes(component: str, names: dict[str, str]) -> dict[str, Any]:
    """Returns the attributes of a component of the new project, with other names."""
    written = yaml.safe_load(with_names(f"{_COMPONENTS}/{component}/defs.yaml", names))
    attributes: dict[str, Any] = written["attributes"]
    return attributes


def _write_test(request: dg.ScaffoldRequest[Any], names: dict[str, str]) -> None:
    """Writes the test of a transform, if Python can import the component's folder."""
    module = _folder(request).removeprefix("src/").split("/")
    if all(map(str.isidentifier, module)):
        test = with_names("tests/test_revenue.py", names | {"shop.defs.revenue": ".".join(module)})
        _write_new(request, f"tests/test_{names['revenue']}.py", test)


def _folder(request: dg.ScaffoldRequest[Any]) -> str:
    """Returns the folder of the component in its project."""
    return request.target_path.relative_to(_root(request)).as_posix()


def _root(request: dg.ScaffoldRequest[Any]) -> Path:
    if request.project_root is None:
        raise ValueError("run the command in a dg project")
    return request.project_root


def _write_new(request: dg.ScaffoldRequest[Any], path: str, text: str) -> None:
    """Writes a file of the project, unless it exists."""
    file = _root(request) / path
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


class TableReplicaParams(DatabaseParams):
    """Options of the command that scaffolds replicas."""

    tables: str = Field(description="The tables, with commas: public.orders,public.customers.")


class TableReplicaScaffolder(dg.Scaffolder[TableReplicaParams]):
    """Writes a TableReplicaComponent for the named tables, which runs from the start."""

    @classmethod
    def get_scaffold_params(cls) -> type[TableReplicaParams]:
        """Returns the options of the command."""
        return TableReplicaParams

    def scaffold(self, request: dg.ScaffoldRequest[TableReplicaParams]) -> None:
        """Writes the component in the requested form."""
        tables = [each.strip() for each in request.params.tables.split(",")]
        dg.scaffold_component(
            request,
            {
                **request.params.of_database(),
                "name": request.target_path.name,
                "tables": [each for each in tables if each],
                "target": {"type": "delta", "base_dir": "{{ context.project_root }}/lake"},
                "max_age": "60s",
                "max_lag": "5m",
                "verify_cron": "0 */6 * * *",
                "running": True,
            },
        )

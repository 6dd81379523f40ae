"""The roles in docs/installing.md are enough; without one of them, the error names it."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pgque_dagster import (
    PgqueResource,
    SparkBatch,
    build_consumer_lag_checks,
    build_dead_letter_checks,
    build_pgque_jobs,
    build_pgque_observation_sensor,
    build_pgque_schedule,
    build_pgque_sensor,
    build_pgque_ticker_sensor,
    build_queue_health_checks,
    pgque_asset,
    pgque_multi_asset,
)
from pgque_dagster.cli import main
from pgque_dagster.client import Client
from pgque_dagster.spark.data_source import PgqueDataSource
from tests.dagster.support import SessionHolder, StoringIOManager, forgetful_instance
from tests.support.dagster.assets import revenue
from tests.support.queues.dead_letters import give_up
from tests.support.queues.events import publish
from tests.support.queues.sql import connect
from tests.support.servers.logins import as_login

DOCS = Path(__file__).parent.parent.parent / "docs"
ROLES = ("pgque_reader", "pgque_writer", "pgque_admin")
# These build the other parts.
COMPONENTS = {"QueueComponent", "BatchConsumerComponent", "WindowComponent"}


def documented() -> list[tuple[str, str]]:
    """Each part of the table with its roles, without the parts that only the owner runs."""
    text = (DOCS / "installing.md").read_text()
    chapter = text.partition("## Which role for what\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", chapter, re.MULTILINE)
    return [
        (part, cell)
        for parts, cell in rows
        for part in re.findall(r"`([^`]+)`", parts)
        if "owner" not in cell and part not in COMPONENTS
    ]


def logins(cell: str) -> tuple[list[tuple[str, ...]], list[tuple[tuple[str, ...], str]]]:
    """Returns the roles that are enough, and those that are not with the role the error names."""
    named = tuple(re.findall(r"pgque_\w+|qgres__\w+", cell))
    if " or " in cell:
        return [(role,) for role in named], [((), named[0])]
    if named == ("pgque_admin",):
        return [named], [(ROLES[:2], "pgque_admin")]
    less = [(tuple(role for role in ROLES[:2] if role != each), each) for each in named]
    return [named], less


@pgque_multi_asset(queue="orders", consumer="revenue", outs={"one": dg.AssetOut()})
def several(batch: SparkBatch) -> int:
    return batch.event_count


def count(batch: SparkBatch) -> int:
    return batch.event_count


window = pgque_asset(
    queue="orders",
    name="window",
    partitions_def=dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00"),
)(count)


class Shop:
    """A database with a queue, and the parts of the table as functions that a login runs."""

    def __init__(self, admin: Client, spark: SparkSession) -> None:
        self._admin = admin
        self._spark = spark
        with connect(admin.url) as db:
            give_up(db, "bad", consumer="revenue", queue="orders")
        publish(admin, ["a", "b"])

    def run(self, part: str, url: str) -> str:
        """Returns the output of a part, or the text of its error and of the error's causes."""
        try:
            if part.startswith("pgque "):
                return self._command(url, part)
            if part.startswith("pgque_") and part.endswith(("letters", "_queue")):
                return self._job(url, part)
            return str(self._parts(url)[part]())
        except Exception as error:
            messages = [str(error)]
            cause: BaseException | None = error
            told = {id(cause)}  # Dagster may make an error the context of its own cause
            while (cause := cause.__cause__ or cause.__context__) and id(cause) not in told:
                told.add(id(cause))
                messages.append(str(cause))
            return " ".join(messages)

    def _parts(self, url: str) -> dict[str, Callable[[], object]]:
        def declare(**settings: Any) -> object:
            return self._resource(url, **settings).database_url()

        def materialize(asset: dg.AssetsDefinition, **options: Any) -> str:
            made = dg.materialize([asset], resources=self._resources(url), **options)
            return f"stored {len(made.get_asset_materialization_events())}"

        def evaluate(sensor: dg.SensorDefinition, **settings: Any) -> object:
            context = dg.build_sensor_context(instance=forgetful_instance())
            return sensor(context, pgque=self._resource(url, **settings))

        def check(checks: Sequence[Any]) -> str:
            return self._check(url, list(checks))

        an_hour = timedelta(hours=1)
        return {
            "queues": lambda: declare(queues=["a new one"]),
            "queue_options": lambda: declare(queue_options={"orders": {"max_retries": 17}}),
            "pgque_asset": lambda: materialize(revenue),
            "pgque_multi_asset": lambda: materialize(several),
            "partitions_def": lambda: materialize(window, partition_key="2026-01-01-00:00"),
            "build_pgque_sensor": lambda: evaluate(build_pgque_sensor([revenue])),
            "build_pgque_schedule": lambda: self._schedule(url),
            "build_pgque_observation_sensor": lambda: evaluate(
                build_pgque_observation_sensor(["orders"])
            ),
            "build_pgque_ticker_sensor": lambda: evaluate(
                build_pgque_ticker_sensor(), ticking="sensor"
            ),
            "build_dead_letter_checks": lambda: check(build_dead_letter_checks(["orders"])),
            "build_consumer_lag_checks": lambda: check(
                build_consumer_lag_checks([revenue], max_lag=an_hour)
            ),
            "build_queue_health_checks": lambda: check(build_queue_health_checks(["orders"])),
            'df.write.format("pgque")': lambda: self._write(url),
        }

    def _resource(self, url: str, **settings: Any) -> PgqueResource:
        return PgqueResource(url=url, install="never", **{"queues": ["orders"], **settings})

    def _resources(self, url: str, manager: Any = None) -> dict[str, Any]:
        return {
            "pgque": self._resource(url),
            "pyspark": SessionHolder(self._spark),
            "io_manager": manager or StoringIOManager(),
        }

    def _schedule(self, url: str) -> object:
        schedule = build_pgque_schedule([revenue], cron_schedule="0 * * * *")
        with (
            dg.instance_for_test() as instance,
            dg.build_schedule_context(
                instance=instance,
                scheduled_execution_time=datetime.now(UTC),
                resources={"pgque": self._resource(url)},
            ) as context,
        ):
            return schedule.evaluate_tick(context)

    def _check(self, url: str, checks: list[dg.AssetChecksDefinition]) -> str:
        job = dg.Definitions(
            assets=[revenue],
            asset_checks=checks,
            jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(*checks))],
            resources=self._resources(url),
        ).resolve_job_def("checks")
        return f"evaluated {len(job.execute_in_process().get_asset_check_evaluations())}"

    def _job(self, url: str, name: str) -> str:
        config: dict[str, Any] = {"queue": "orders"}
        if "add" in name:
            config |= {"consumer": "revenue", "events": [1]}
        job = dg.Definitions(
            jobs=build_pgque_jobs(), resources={"pgque": self._resource(url)}
        ).resolve_job_def(name)
        op = name.removeprefix("pgque_")
        done = job.execute_in_process(run_config={"ops": {op: {"config": config}}})
        return f"success: {done.success}"

    def _write(self, url: str) -> str:
        """What Spark calls for a DataFrame of one row, without the processes that it starts."""
        source = PgqueDataSource({"url": url, "queue": "orders"})
        writer = source.writer(StructType().add("data", "string"), overwrite=False)
        writer.commit([writer.write(iter([pa.record_batch({"data": ["x"]})]))])
        return "written"

    def _owned_table(self, url: str, captured: bool) -> str:
        """A table of the login, which is captured or not."""
        owner = conninfo_to_dict(url)["user"]
        table = f"public.of_{owner}"
        with connect(self._admin.url) as db:
            db.execute(f"drop table if exists {table}")
            db.execute(f"create table {table} (id int primary key)")
            db.execute(f"alter table {table} owner to {owner}")
            if captured:
                db.execute("select pgque.capture(%s, 'orders')", (table,))
        return table

    def _command(self, url: str, command: str) -> str:
        arguments = {
            "pgque send": ["orders", "{}"],
            "pgque register": ["orders", "another"],
            "pgque assign": ["orders", "revenue", "production"],
            "pgque unregister": ["orders", "revenue"],
            "pgque seek": ["orders", "revenue", "latest", "--yes"],
            "pgque peek": ["orders"],
            "pgque release": ["orders", "revenue", "--yes"],
            "pgque dead-letters add": ["orders", "revenue", "1"],
            "pgque dead-letters show": ["orders", "1"],
            "pgque configure": ["orders", "max_retries=3"],
            "pgque pause": ["orders"],
            "pgque resume": ["orders"],
            "pgque create-queue": ["another"],
            "pgque drop-queue": ["orders", "--force"],
            "pgque ticker": ["--once"],
            "pgque relay": ["orders"],
            "pgque dead-letters replay": ["orders"],
            "pgque dead-letters purge": ["orders"],
            "pgque dead-letters list": ["orders"],
        }.get(command, [])
        if command in {"pgque capture", "pgque uncapture"}:
            arguments = [self._owned_table(url, command == "pgque uncapture"), "orders"]
        done = CliRunner().invoke(main, [*command.split()[1:], *arguments], env={"PGQUE_URL": url})
        assert done.exit_code in (0, 1, 3), done.output
        return done.output


@pytest.mark.parametrize(("part", "cell"), documented())
def test_a_part_needs_the_roles_of_the_table_and_names_the_one_that_it_lacks(
    client: Client, spark: SparkSession, part: str, cell: str
) -> None:
    shop = Shop(client, spark)
    if "window" in part:
        with connect(client.url) as db:
            # The ticks are of the first hour and of the time after it.
            db.execute(
                "update pgque.tick_log set tick_time = '2026-01-01 00:00+00'::timestamptz"
                " + (tick_id - 1) * interval '30 minutes'"
            )
    enough, too_few = logins(cell)

    for roles, missing in too_few:
        refusal = shop.run(part, as_login(client.url, *roles))
        assert f'grant {missing} to "' in refusal, (roles, refusal)
    for roles in enough:
        allowed = shop.run(part, as_login(client.url, *roles))
        assert not re.search("grant (pgque_|qgres__)", allowed)
        assert "permission denied" not in allowed.lower()


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_what_is_for_the_owner_of_the_schema_names_him(database_url: str, command: str) -> None:
    url = as_login(database_url, *ROLES)

    messages = CliRunner().invoke(main, [command], env={"PGQUE_URL": url}).output

    assert "Only the schema's owner may do this: log in as postgres" in messages


def test_every_command_is_in_the_table() -> None:
    text = (DOCS / "installing.md").read_text()
    names = [
        f"pgque {name}" if not hasattr(command, "commands") else f"pgque {name} {inner}"
        for name, command in main.commands.items()
        for inner in getattr(command, "commands", [""])
    ]
    assert [name for name in names if f"`{name}`" not in text] == []

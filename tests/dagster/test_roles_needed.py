"""The roles in docs/installing.md are enough; without one of them, the error names it."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from pgque_dagster import (
    PgqueResource,
    SparkBatch,
    build_consumer_lag_checks,
    build_dead_letter_checks,
    build_message_queue_defs,
    build_pgque_jobs,
    build_pgque_observation_sensor,
    build_pgque_schedule,
    build_pgque_sensor,
    build_pgque_ticker_sensor,
    build_queue_health_checks,
    installer,
    pgque_asset,
    pgque_multi_asset,
    pgque_replay_asset,
    pgque_window_asset,
)
from pgque_dagster.cli import main
from pgque_dagster.client import Client, Limits
from pgque_dagster.consumers import consumers_of
from pgque_dagster.sensors.attempts import AttemptPolicy
from pgque_dagster.sensors.run_requests import BatchPolicy
from pgque_dagster.spark import register
from pgque_dagster.worker.worker import Worker
from tests.dagster.support import SessionHolder, StoringIOManager
from tests.support.dead_letters import give_up
from tests.support.events import publish
from tests.support.logins import as_login
from tests.support.queues import connect

DOCS = Path(__file__).parent.parent.parent / "docs"
ROLES = ("pgque_reader", "pgque_writer", "pgque_admin")
# Parts that a test of a project in YAML covers, below.
COMPONENTS = {
    *("QueueComponent", "BatchConsumerComponent", "WindowComponent", "MessageQueueComponent")
}


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


@pgque_asset(queue="orders")
def revenue(batch: SparkBatch) -> int:
    return batch.event_count


@pgque_multi_asset(queue="orders", consumer="revenue", outs={"one": dg.AssetOut()})
def several(batch: SparkBatch) -> int:
    return batch.event_count


def count(batch: SparkBatch) -> int:
    return batch.event_count


replay = pgque_replay_asset(queue="orders", name="replay")(count)
window = pgque_window_asset(
    queue="orders",
    name="window",
    partitions_def=dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00"),
)(count)


class Shop:
    """A database with a queue, and the parts of the table as functions that a login runs.

    Each part returns its output. `output_of` turns an error into text.
    """

    def __init__(self, admin: Client, spark: SparkSession, folder: Path) -> None:
        self._admin = admin
        self._spark = spark
        self._folder = folder
        with connect(admin.url) as db:
            give_up(db, "bad", consumer="revenue", queue="orders")
        publish(admin, ["a", "b"])
        self._entry = admin.send_at("orders", "later", at=datetime.now(UTC) + timedelta(days=1))

    def part(self, name: str) -> Callable[[str], str]:
        """Returns the function that runs a part with a URL."""
        if name.startswith("client."):
            self._make_addons()
            return lambda url: self._call(url, name)
        if name.startswith("pgque ") and name != "pgque worker":
            return lambda url: self._command(url, name)
        if name.startswith("pgque_") and name.endswith(("letters", "_queue")):
            return lambda url: self._job(url, name)
        found: Callable[[str], str] = getattr(self, f"_{re.sub(r'[^a-z_]', '_', name.lower())}")
        return found

    def _make_addons(self) -> None:
        installer.install(self._admin.url, ["postgremq", "qgres"])
        self._admin.messages.create_topic("mail")
        self._admin.messages.create_queue("emails", "mail")
        self._admin.serial.create("journal", "SP")
        self._admin.serial.create("chores", "SR")
        self._admin.serial.register("journal", "c")

    def _call(self, url: str, name: str) -> str:
        self._admin.messages.publish("mail", {})
        (message,) = self._admin.messages.consume("emails")
        calls: dict[str, Callable[[Client], Any]] = {
            "messages.publish": lambda client: client.messages.publish("mail", {}),
            "messages.consume": lambda client: client.messages.consume("emails"),
            "messages.ack": lambda client: client.messages.ack(message),
            "messages.nack": lambda client: client.messages.nack(message),
            "messages.release": lambda client: client.messages.release(message),
            "messages.extend": lambda client: client.messages.extend(message),
            "messages.create_topic": lambda client: client.messages.create_topic("other"),
            "messages.create_queue": lambda client: client.messages.create_queue("sms", "mail"),
            "serial.publish": lambda client: client.serial.publish("journal", text="a"),
            "serial.add": lambda client: client.serial.add("chores", text="a"),
            "serial.register": lambda client: client.serial.register("journal", "d"),
            "serial.consume": lambda client: client.serial.consume("journal", "c"),
            "serial.remove": lambda client: client.serial.remove("chores"),
            "serial.create": lambda client: client.serial.create("another", "SP"),
            "serial.drop": lambda client: client.serial.drop("chores"),
            "serial.log": lambda client: client.serial.log("journal"),
            "serial.unlog": lambda client: client.serial.unlog("journal"),
        }
        with Client(url) as client:
            return str(calls[name.removeprefix("client.")](client))

    def _resource(self, url: str, **settings: Any) -> PgqueResource:
        return PgqueResource(url=url, install="never", **{"queues": ["orders"], **settings})

    def _resources(self, url: str) -> dict[str, Any]:
        return {
            "pgque": self._resource(url),
            "pyspark": SessionHolder(self._spark),
            "io_manager": StoringIOManager(),
        }

    def _topics(self, url: str) -> str:
        installer.install(self._admin.url, ["postgremq"])
        return self._resource(url, topics=["orders"]).database_url()

    def _serial_queues(self, url: str) -> str:
        installer.install(self._admin.url, ["qgres"])
        return self._resource(url, serial_queues=["orders"]).database_url()

    def _pgqueresource(self, url: str) -> str:
        return self._resource(url, consumers={"orders": ["revenue"]}).database_url()

    def _pgqueresource_health(self, url: str) -> str:
        return str(self._resource(url).health())

    def _consumers(self, url: str) -> str:
        return self._resource(url, consumers={"orders": ["a new one"]}).database_url()

    def _queues(self, url: str) -> str:
        return self._resource(url, queues=["a new one"]).database_url()

    def _queue_options(self, url: str) -> str:
        return self._resource(url, queue_options={"orders": {"max_retries": 17}}).database_url()

    def _ticking__pg_cron(self, url: str) -> str:
        return self._resource(url, ticking="pg_cron").database_url()

    def _pgque_asset(self, url: str) -> str:
        return self._materialize(url, revenue)

    def _pgque_multi_asset(self, url: str) -> str:
        return self._materialize(url, several)

    def _pgque_replay_asset(self, url: str) -> str:
        (consumer,) = (each for each in self._admin.consumers() if each.name == "revenue")
        first = consumer.last_tick_id or 0
        ticks = {"from_tick": first, "to_tick": first + 1}
        return self._materialize(url, replay, {"ops": {"replay": {"config": ticks}}})

    def _pgque_window_asset(self, url: str) -> str:
        with connect(self._admin.url) as db:
            # The ticks are of the first hour and of the time after it.
            db.execute(
                "update pgque.tick_log set tick_time = '2026-01-01 00:00+00'::timestamptz"
                " + (tick_id - 1) * interval '30 minutes'"
            )
        return self._materialize(url, window, partition_key="2026-01-01-00:00")

    def _materialize(
        self,
        url: str,
        asset: dg.AssetsDefinition,
        run_config: dict[str, Any] | None = None,
        partition_key: str | None = None,
    ) -> str:
        result = dg.materialize(
            [asset],
            resources=self._resources(url),
            run_config=run_config,
            partition_key=partition_key,
        )
        return f"stored {len(result.get_asset_materialization_events())}"

    def _build_pgque_sensor(self, url: str) -> str:
        return self._evaluate(url, build_pgque_sensor([revenue]))

    def _build_pgque_schedule(self, url: str) -> str:
        schedule = build_pgque_schedule([revenue], cron_schedule="0 * * * *")
        with (
            dg.instance_for_test() as instance,
            dg.build_schedule_context(
                instance=instance,
                scheduled_execution_time=datetime.now(UTC),
                resources={"pgque": self._resource(url)},
            ) as context,
        ):
            return str(schedule.evaluate_tick(context))

    def _build_pgque_observation_sensor(self, url: str) -> str:
        return self._evaluate(url, build_pgque_observation_sensor(["orders"]))

    def _build_pgque_ticker_sensor(self, url: str) -> str:
        return self._evaluate(url, build_pgque_ticker_sensor(), ticking="sensor")

    def _evaluate(self, url: str, sensor: dg.SensorDefinition, **settings: Any) -> str:
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_sensor_context(instance=instance)
            return str(sensor(context, pgque=self._resource(url, **settings)))

    def _pgque_worker(self, url: str) -> str:
        stop: list[Callable[[], None]] = []
        store = StoringIOManager(lambda value: stop[0]())
        resources = {**self._resources(url), "io_manager": store}
        definitions = dg.Definitions(assets=[revenue], resources=resources)
        with dg.instance_for_test() as instance:
            worker = Worker(
                definitions.resolve_implicit_global_asset_job_def(),
                consumers_of([revenue]),
                instance,
                self._resource(url),
                BatchPolicy(Limits(), AttemptPolicy(1, timedelta(seconds=1))),
            )
            stop.append(worker.stop)
            worker.run()
            return ", ".join(run.status.value for run in instance.get_runs())

    def _build_dead_letter_checks(self, url: str) -> str:
        return self._check(url, build_dead_letter_checks(["orders"], max_growth=1))

    def _build_message_queue_defs(self, url: str) -> str:
        installer.install(self._admin.url, ["postgremq"])
        self._admin.messages.create_topic("mail")
        self._admin.messages.create_queue("emails", "mail")
        checks = build_message_queue_defs(["emails"]).asset_checks
        found = [each for each in checks or () if isinstance(each, dg.AssetChecksDefinition)]
        return self._check(url, found)

    def _build_consumer_lag_checks(self, url: str) -> str:
        return self._check(url, build_consumer_lag_checks([revenue], max_lag=timedelta(hours=1)))

    def _build_queue_health_checks(self, url: str) -> str:
        return self._check(url, build_queue_health_checks(["orders"]))

    def _check(self, url: str, checks: list[dg.AssetChecksDefinition]) -> str:
        job = dg.Definitions(
            assets=[revenue],
            asset_checks=checks,
            jobs=[dg.define_asset_job("checks", dg.AssetSelection.checks(*checks))],
            resources=self._resources(url),
        ).resolve_job_def("checks")
        return f"evaluated {len(job.execute_in_process().get_asset_check_evaluations())}"

    def _job(self, url: str, name: str) -> str:
        path = str(self._folder / f"{len(list(self._folder.iterdir()))}.jsonl")
        config = {"queue": "orders", **({"path": path} if "export" in name else {})}
        if "add" in name:
            config |= {"consumer": "revenue", "events": [1]}
        job = dg.Definitions(
            jobs=build_pgque_jobs(), resources={"pgque": self._resource(url)}
        ).resolve_job_def(name)
        op = name.removeprefix("pgque_")
        done = job.execute_in_process(run_config={"ops": {op: {"config": config}}})
        return f"success: {done.success}"

    def _df_write_format__pgque__(self, url: str) -> str:
        register(self._spark)
        frame = self._spark.createDataFrame([("x",)], "data string")
        frame.write.format("pgque").options(url=url, queue="orders").mode("append").save()
        return "written"

    def _command(self, url: str, command: str) -> str:
        arguments = {
            "pgque send": ["orders", "{}"],
            "pgque scheduled cancel": [str(self._entry)],
            "pgque register": ["orders", "another"],
            "pgque assign": ["orders", "revenue", "production"],
            "pgque unregister": ["orders", "revenue"],
            "pgque seek": ["orders", "revenue", "latest", "--yes"],
            "pgque repartition": ["orders", "revenue", "4"],
            "pgque peek": ["orders"],
            "pgque tail": ["orders", "--from", "earliest", "--limit", "1"],
            "pgque drain": ["orders", "--timeout", "0s"],
            "pgque leases release": ["orders", "revenue", "--yes"],
            "pgque dead-letters add": ["orders", "revenue", "1"],
            "pgque dead-letters show": ["orders", "1"],
            "pgque dead-letters export": ["orders"],
            "pgque configure": ["orders", "max_retries=3"],
            "pgque pause": ["orders"],
            "pgque resume": ["orders"],
            "pgque create-queue": ["another", "--set", "max_retries=3"],
            "pgque drop-queue": ["orders", "--force"],
            "pgque ticker": ["--once"],
            "pgque dead-letters replay": ["orders"],
            "pgque dead-letters purge": ["orders"],
            "pgque dead-letters list": ["orders"],
            "pgque scheduled list": ["orders"],
        }.get(command, [])
        done = CliRunner().invoke(main, [*command.split()[1:], *arguments], env={"PGQUE_URL": url})
        assert done.exit_code in (0, 1, 3), done.output
        return done.output


def output_of(part: Callable[[str], str], url: str) -> str:
    """Returns the output of a part, or the text of its error and of the error's causes."""
    try:
        return part(url)
    except Exception as error:
        messages = [str(error)]
        cause: BaseException | None = error
        while cause := cause.__cause__ or cause.__context__:
            messages.append(str(cause))
        return " ".join(messages)


@pytest.mark.parametrize(("part", "cell"), documented())
def test_a_part_needs_the_roles_of_the_table_and_names_the_one_that_it_lacks(
    client: Client, spark: SparkSession, tmp_path: Path, part: str, cell: str
) -> None:
    run = Shop(client, spark, tmp_path).part(part)
    enough, too_few = logins(cell)

    for roles, missing in too_few:
        refusal = output_of(run, as_login(client.url, *roles))
        assert f'grant {missing} to "' in refusal, (roles, refusal)
    for roles in enough:
        allowed = output_of(run, as_login(client.url, *roles))
        assert not re.search("grant (pgque_|qgres__)", allowed)
        assert "permission denied" not in allowed.lower()


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_what_is_for_the_owner_of_the_schema_names_him(database_url: str, command: str) -> None:
    url = as_login(database_url, *ROLES)

    messages = CliRunner().invoke(main, [command], env={"PGQUE_URL": url}).output

    assert "Only the owner of the schema may do this: log in as postgres" in messages


def test_every_command_is_in_the_table() -> None:
    text = (DOCS / "installing.md").read_text()
    names = [
        f"pgque {name}" if not hasattr(command, "commands") else f"pgque {name} {inner}"
        for name, command in main.commands.items()
        for inner in getattr(command, "commands", [""])
        if name != "dlq"
    ]
    assert [name for name in names if f"`{name}`" not in text] == []

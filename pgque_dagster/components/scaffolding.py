"""The scaffolders of `dg scaffold defs`: they write YAML that works as it is, with comments."""

import re
from datetime import UTC, datetime
from string import Template
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from .sinks import sink_types

_PGQUE = """\
# The database of the queues, and the Spark session of their consumers. A project has one.
type: $type

attributes:
  # A libpq URI or connection string from the environment, so that it is never shown. If left out,
  # the embedded PostgreSQL of the project folder is started.
  # url: "{{ env.PGQUE_URL }}"

  # Whether to install the schema: never, if_missing, or upgrade an older one too.
  install: if_missing

  # Who ticks: external (run `pgque ticker`), pg_cron, or sensor (a sensor of this project).
  ticking: external

  # Queues to create, besides those that have a QueueComponent.
  # queues: [other]

  # Topics of postgremq and serial queues of qgres: consumers read the queues postgremq.<topic> and
  # qgres.<name>, which get each message and entry.
  # topics: [orders]
  # serial_queues: [journal]

  # Settings of the Spark session; null if you define the resource `pyspark` yourself.
  spark_config:
    spark.master: local[2]

  # Or a session on a Spark Connect server, which outlives runs. Its Python finds the database in
  # the variable, so that no query contains a password.
  # spark_config:
  #   spark.remote: sc://localhost:15002
  # executors_url_env: PGQUE_SECRET_URL

# requirements:
#   env: [PGQUE_URL]

# For batches within seconds, dagster.yaml of the instance has processes that stay between runs:
# run_launcher:
#   module: pgque_dagster.launcher
#   class: WarmRunLauncher
#   config: {processes: 2, max_runs: 100, max_memory_mb: 4096}
"""

_QUEUE = """\
# A queue in the lineage, and its checks. The PgqueComponent creates the queue if it is missing.
type: $type

attributes:
  queue: $name

  # The group of the assets of the queue and its dead letters.
  group_name: pgque

  # How often depth, rate and lag are recorded, for the plots of the asset; null for never.
  # Its sensor is stopped until somebody switches it on in the UI, under Automation, or until
  # default_status is RUNNING.
  observation:
    interval: 5m
    # default_status: RUNNING

  # Assets that send the events, shown upstream of the queue, such as a table with a trigger.
  # producers: [orders_table]

  # Fails if the queue has more dead letters than this; null for no check.
  dead_letter_checks:
    max_dead_letters: 0
    severity: ERROR

  # When the job ${identifier}_checks runs the checks. Its schedule is stopped, too, until somebody
  # switches it on, or until default_status is RUNNING.
  check_schedule:
    cron_schedule: "*/5 * * * *"
    # default_status: RUNNING
"""

_MESSAGE_QUEUE = """\
# A queue of messages, of the add-on postgremq, in the lineage, and its check. `addons: [postgremq]`
# of the PgqueComponent installs the add-on.
type: $type

attributes:
  # The queue. If it is missing, create it: select postgremq.create_queue('$name', 'its topic');
  queue: $name

  # The group of its asset.
  group_name: pgque

  # Assets that publish the messages, shown upstream of the queue.
  # producers: [orders]

  # The check fails if more messages are in the dead-letter queue.
  max_dead_letters: 0

  # It also fails if more messages wait or are claimed; null for any number.
  max_unfinished: null
  severity: ERROR
"""

_CONSUMER = """\
# A consumer: the asset that a function computes from each batch of a queue, and its sensor.
type: $type

attributes:
  # The queue; declare it with a QueueComponent.
  queue: $queue

  # The name of the asset and of the consumer.
  name: $identifier

  # The function in transform.py beside this file; or an import path, my_project.module.function.
  transform: .transform.transform

  # How to read JSON payloads: the fields as Spark DDL, and what happens to events that do not fit
  # (dead_letter, retry, fail, keep). If left out, the transform gets the events as they are.
  # payload:
  #   schema: product string not null, total double not null
  #   on_malformed: dead_letter
  #   max_malformed: 0.1  # more than a tenth malformed fails the run

  # Where the DataFrame is stored; docs/components.md has the options:
$sinks
  sink:
    type: parquet
    base_dir: "{{ context.project_root }}/output"

  # When a batch gets its run: if min_events wait, or if the oldest has waited max_age. The sensor
  # is stopped until somebody switches it on in the UI, under Automation, or until default_status
  # is RUNNING. Whoever loads a project with RUNNING and the URL of a database consumes its events.
  sensor:
    min_events: 1
    max_age: 60s
    max_attempts: 3
    # default_status: RUNNING

  # How long the lease of a run that died lasts.
  lease_ttl: 1m

  # group_name: $group
"""

_WINDOW = """\
# An asset partitioned by time: each partition is the events of a window, whoever has consumed them.
type: $type

attributes:
  # The queue; declare it with a QueueComponent, with a retention as long as windows are wanted for.
  queue: $queue

  # The name of the asset.
  name: $identifier

  # The windows: dg.HourlyPartitionsDefinition, dg.DailyPartitionsDefinition, ...
  partitions_def: "{{ dg.DailyPartitionsDefinition(start_date='$today') }}"

  # The function in transform.py beside this file; or an import path, my_project.module.function.
  transform: .transform.transform

  # How to read JSON payloads, as for a BatchConsumerComponent.
  # payload:
  #   schema: product string not null, total double not null

  # Where the DataFrame is stored: parquet, delta (by append) or iceberg.
  sink:
    type: parquet
    base_dir: "{{ context.project_root }}/output"

  # A window is over when the queue has a tick after it, so a run just after its end may fail.
  retry_policy:
    max_retries: 3
    delay: 1m

  # group_name: $group
"""

_TRANSFORM = '''\
"""Computes the asset $identifier."""

from pyspark.sql import DataFrame


def transform(events: DataFrame) -> DataFrame:
    """Counts the events of each type in the batch."""
    return events.groupBy("ev_type").count()
'''


class PgqueScaffolder(dg.Scaffolder):
    """Writes a commented PgqueComponent."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes it in the place and form asked for."""
        _write(request, _PGQUE)


class QueueScaffolder(dg.Scaffolder):
    """Writes a commented QueueComponent for the queue with the name of the folder."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes it in the place and form asked for."""
        _write(request, _QUEUE)


class MessageQueueScaffolder(dg.Scaffolder):
    """Writes a commented MessageQueueComponent for the queue with the name of the folder."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes it in the place and form asked for."""
        _write(request, _MESSAGE_QUEUE)


class ConsumerParams(BaseModel):
    """Options of the commands that scaffold a consumer, or an asset of windows."""

    queue: str | None = Field(
        default=None, description="The queue to read; by default the name of the folder."
    )


class BatchConsumerScaffolder(dg.Scaffolder[ConsumerParams]):
    """Writes a commented BatchConsumerComponent and its transform."""

    @classmethod
    def get_scaffold_params(cls) -> type[ConsumerParams]:
        """Returns the options of the command."""
        return ConsumerParams

    def scaffold(self, request: dg.ScaffoldRequest[ConsumerParams]) -> None:
        """Writes it in the place and form asked for."""
        sinks = "\n".join(f"  #   {name}: {text}" for name, text in sink_types().items())
        _write_with_transform(request, _CONSUMER, sinks=sinks)


class WindowScaffolder(dg.Scaffolder[ConsumerParams]):
    """Writes a commented WindowComponent and its transform."""

    @classmethod
    def get_scaffold_params(cls) -> type[ConsumerParams]:
        """Returns the options of the command."""
        return ConsumerParams

    def scaffold(self, request: dg.ScaffoldRequest[ConsumerParams]) -> None:
        """Writes it in the place and form asked for."""
        today = datetime.now(UTC).date().isoformat()
        _write_with_transform(request, _WINDOW, today=today)


def _write_with_transform(
    request: dg.ScaffoldRequest[ConsumerParams], template: str, **values: str
) -> None:
    queue = request.params.queue or request.target_path.name
    group = re.sub(r"[^A-Za-z0-9_]", "_", queue)
    _write(request, template, queue=queue, group=group, **values)
    if request.scaffold_format == "yaml":
        text = Template(_TRANSFORM).substitute(_names(request))
        (request.target_path / "transform.py").write_text(text)


def _write(request: dg.ScaffoldRequest[Any], template: str, **values: str) -> None:
    if request.scaffold_format == "python":
        dg.scaffold_component(request)
        return
    text = Template(template).substitute(type=request.type_name, **_names(request), **values)
    (request.target_path / "defs.yaml").write_text(text)


def _names(request: dg.ScaffoldRequest[Any]) -> dict[str, str]:
    name = request.target_path.name
    return {"name": name, "identifier": name.replace("-", "_").replace(".", "_")}

"""The scaffolders of `dg scaffold defs`: they write YAML that works as it is, with comments."""

import json
from datetime import UTC, datetime
from string import Template
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

_PGQUE = """\
# The database of the queues, and the Spark session of their consumers. A project has one.
# docs/components.md and `dg list components` have all attributes.
type: $type

attributes:
  # The database, from the environment; without it, the project's embedded PostgreSQL is started.
  # url: "{{ env.PGQUE_URL }}"

  # Whether to install the schema: never, if_missing, or upgrade an older one too.
  install: if_missing

  # Who ticks: sensor (those of this project, while Dagster runs), pg_cron, or external (run
  # `pgque ticker`).
  ticking: sensor
  ticker_sensor:
    default_status: RUNNING

  # Settings of the Spark session; null if you define the resource `pyspark` yourself.
  spark_config:
    spark.master: local[2]

# requirements:
#   env: [PGQUE_URL]

# For batches within seconds, dagster.yaml of the instance has processes that stay between runs, and
# looks at the queue of runs each second:
# run_launcher:
#   module: pgque_dagster.launcher
#   class: WarmRunLauncher
# run_coordinator:
#   module: dagster
#   class: QueuedRunCoordinator
#   config: {dequeue_interval_seconds: 1}
"""

_QUEUE = """\
# A queue in the lineage, and its checks. The PgqueComponent creates the queue if it is missing.
# Its sensor and schedule are stopped until somebody switches them on in the UI, under Automation.
type: $type

attributes:
  queue: $name

  # How often depth, rate and lag are recorded, for the plots of the asset; null for never.
  observation:
    interval: 5m
    # default_status: RUNNING

  # Fails if the queue has more dead letters than this; null for no check.
  dead_letter_checks:
    max_dead_letters: 0

  # When the job ${identifier}_checks runs the checks.
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

  # The check fails if more messages are in the dead-letter queue, or wait or are claimed.
  max_dead_letters: 0
  max_unfinished: null
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

  # How to read JSON payloads. If left out, the transform gets the events as they are.
  # payload:
  #   schema: product string not null, total double not null

  # Where the DataFrame is stored: parquet, postgres, delta or iceberg.
  sink:
    type: parquet
    base_dir: "{{ context.project_root }}/output"

  # When a batch gets its run: if min_events wait, or if the oldest has waited max_age. Whoever
  # loads a project with RUNNING and the URL of a database consumes its events.
  sensor:
    min_events: 1
    max_age: 60s
    # default_status: RUNNING
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

  # Where the DataFrame is stored: parquet, delta (by append) or iceberg.
  sink:
    type: parquet
    base_dir: "{{ context.project_root }}/output"

  # A window is over when the queue has a tick after it, so a run just after its end may fail.
  retry_policy:
    max_retries: 3
    delay: 1m
"""

_REPLICAS = """\
# Tables of PostgreSQL as Delta tables, which follow every change and are compared with these.
type: $type

attributes:
  # The name of the queue that gets the changes, and the first part of the assets' keys.
  name: $name

  # The tables, each with a primary key. The role in the url of the PgqueComponent must own them,
  # or their owner runs for each: select pgque.capture('public.orders', '$name');
  tables:
$tables

  # The folder or URL of the lake; the replica of public.orders is in public/orders. For tables of
  # another database: type: postgres, with its url; or with the schema of the replicas.
  target:
    type: delta
    base_dir: "{{ context.project_root }}/lake"

  # How long a change waits for others before a run applies it, and the lag that fails the check.
  max_age: 60s
  max_lag: 5m

  # When each table is compared with its replica, row by row.
  verify_cron: "0 */6 * * *"

  # Sensors and schedule are on from the start; with false, somebody switches them on in the UI.
  running: true
"""

_TRANSFORM = '''\
"""Computes the asset $identifier."""

from pyspark.sql import DataFrame


def transform(events: DataFrame) -> DataFrame:
    """Counts the events of each type in the batch."""
    return events.groupBy("ev_type").count()
'''


class _Scaffolder(dg.Scaffolder[Any]):
    """Writes a commented `defs.yaml`.

    Attributes:
        template: the file. It may contain $type, $name, $identifier, $queue, $tables and $today.
    """

    template: str

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes it in the place and form asked for."""
        if request.scaffold_format == "python":
            dg.scaffold_component(request)
        else:
            self._write(request, "defs.yaml", self.template)

    def _write(self, request: dg.ScaffoldRequest[Any], file: str, template: str) -> None:
        name = request.target_path.name
        tables = [each.strip() for each in getattr(request.params, "tables", "").split(",")]
        text = Template(template).substitute(
            type=request.type_name,
            name=name,
            identifier=name.replace("-", "_").replace(".", "_"),
            queue=getattr(request.params, "queue", None) or name,
            tables="\n".join(f"    - {json.dumps(table)}" for table in tables if table),
            today=datetime.now(UTC).date().isoformat(),
        )
        (request.target_path / file).write_text(text)


class PgqueScaffolder(_Scaffolder):
    """Writes a commented PgqueComponent."""

    template = _PGQUE


class QueueScaffolder(_Scaffolder):
    """Writes a commented QueueComponent for the queue with the name of the folder."""

    template = _QUEUE


class MessageQueueScaffolder(_Scaffolder):
    """Writes a commented MessageQueueComponent for the queue with the name of the folder."""

    template = _MESSAGE_QUEUE


class ConsumerParams(BaseModel):
    """Options of the commands that scaffold a consumer, or an asset of windows."""

    queue: str | None = Field(
        default=None, description="The queue to read; by default the name of the folder."
    )


class BatchConsumerScaffolder(_Scaffolder):
    """Writes a commented BatchConsumerComponent and its transform."""

    template = _CONSUMER

    @classmethod
    def get_scaffold_params(cls) -> type[ConsumerParams]:
        """Returns the options of the command."""
        return ConsumerParams

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        """Writes it in the place and form asked for."""
        super().scaffold(request)
        if request.scaffold_format == "yaml":
            self._write(request, "transform.py", _TRANSFORM)


class WindowScaffolder(BatchConsumerScaffolder):
    """Writes a commented WindowComponent and its transform."""

    template = _WINDOW


class TableReplicaParams(BaseModel):
    """Options of the command that scaffolds replicas."""

    tables: str = Field(description="The tables, with commas: public.orders,public.customers.")


class TableReplicaScaffolder(_Scaffolder):
    """Writes a commented TableReplicaComponent for the tables that are named."""

    template = _REPLICAS

    @classmethod
    def get_scaffold_params(cls) -> type[TableReplicaParams]:
        """Returns the options of the command."""
        return TableReplicaParams

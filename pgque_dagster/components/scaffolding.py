"""What `dg scaffold defs` writes: YAML that works as it is, with a comment to each choice."""

from string import Template
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

_PGQUE = """\
# The database of the queues, and the Spark session of their consumers: one such file a project.
type: $type

attributes:
  # A libpq URI or connection string from the environment, so that it shows nowhere. Without it the
  # embedded PostgreSQL of the project folder is started.
  # url: "{{ env.PGQUE_URL }}"

  # Whether to install the schema: never, if_missing, or upgrade an older one too.
  install: if_missing

  # Who ticks: external (run `pgque ticker`), pg_cron, or sensor (a sensor of this project).
  ticking: external

  # Queues to create, besides those that have a QueueComponent.
  # queues: [other]

  # Settings of the Spark session; null, where `pyspark` is a resource of your own.
  spark_config:
    spark.master: local[2]

# requirements:
#   env: [PGQUE_URL]
"""

_QUEUE = """\
# A queue in the lineage, and the checks on it. The PgqueComponent creates it where it is missing.
type: $type

attributes:
  queue: $name

  # The group to show the queue and its dead letters in.
  group_name: pgque

  # How often its depth, rate and lag are recorded, for the plots of its asset; null for never.
  observation:
    interval: 5m

  # Assets whose events these are, to be shown upstream, such as the table whose trigger sends.
  # producers: [orders_table]

  # Fails when consumers gave up more events than this; null for no check.
  dead_letter_checks:
    max_dead_letters: 0
    severity: ERROR

  # When to run the checks, as a cron expression. The job ${identifier}_checks runs them, too.
  # check_schedule: "* * * * *"
"""

_CONSUMER = """\
# A consumer: the asset that a function computes from each batch of a queue, and its sensor.
type: $type

attributes:
  # A QueueComponent declares it.
  queue: $queue

  # The asset's name, and the consumer's in the queue.
  name: $identifier

  # The function in transform.py beside this file; or an import path, my_project.module.function.
  transform: .transform.transform

  # How to read JSON payloads: fields as Spark's DDL, and what becomes of events that do not fit
  # (dead_letter, retry, fail, keep). Without it the transform gets the events as they are.
  # payload:
  #   schema: product string not null, total double not null
  #   on_malformed: dead_letter
  #   max_malformed: 0.1  # more than a tenth malformed fails the run

  # Where the DataFrame is stored: Parquet, a directory a batch. Or a table of the queue's database
  # that is there already, merged in the transaction of the ack; mode is append, upsert or add.
  #   type: postgres
  #   mode: upsert
  #   key: [product]
  sink:
    type: parquet
    base_dir: "{{ context.project_root }}/output"

  # When a batch gets its run: once so many events are there, or the oldest has waited so long.
  sensor:
    min_events: 1
    max_age: 60s
    max_attempts: 3

  # How long a batch stays with a run that died.
  lease_ttl: 1m

  # group_name: $queue
"""

_TRANSFORM = '''\
"""What the asset $identifier is made of."""

from pyspark.sql import DataFrame


def transform(events: DataFrame) -> DataFrame:
    """How many events of each type the batch has."""
    return events.groupBy("ev_type").count()
'''


class PgqueScaffolder(dg.Scaffolder):
    """Writes a commented PgqueComponent."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes it in the place and form asked for."""
        _write(request, _PGQUE)


class QueueScaffolder(dg.Scaffolder):
    """Writes a commented QueueComponent of the queue that the folder is named after."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Writes it in the place and form asked for."""
        _write(request, _QUEUE)


class ConsumerParams(BaseModel):
    """What one may say when scaffolding a consumer."""

    queue: str | None = Field(
        default=None, description="The queue to consume; the name of the folder, if left out."
    )


class BatchConsumerScaffolder(dg.Scaffolder[ConsumerParams]):
    """Writes a commented BatchConsumerComponent and the transform that it names."""

    @classmethod
    def get_scaffold_params(cls) -> type[ConsumerParams]:
        """Returns the options of the command."""
        return ConsumerParams

    def scaffold(self, request: dg.ScaffoldRequest[ConsumerParams]) -> None:
        """Writes it in the place and form asked for."""
        _write(request, _CONSUMER, queue=request.params.queue or request.target_path.name)
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

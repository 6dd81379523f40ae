"""The jobs and their ops: add, replay and purge dead letters."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from ..client.client import Client
from ..client.ranges import PATTERN, parse_duration
from ..project.consumers import consumers_of_location
from ..project.database import DEFAULT, Database
from ..project.queue_report import report_queues
from ..project.resource import PgqueResource, takes_resource
from ..project.step_errors import log_error_line


def build_pgque_jobs(database: str = DEFAULT) -> list[dg.JobDefinition]:
    """Builds the jobs for operating dead letters. The config of each run names the queue.

    Args:
        database: the key of the PgqueResource whose database has the dead letters.

    Returns:
        `pgque_add_dead_letters`, `pgque_replay_dead_letters` and `pgque_purge_dead_letters`, with
        the database in front. Add them to the Definitions once. They need the resource of the
        database. Each run records its result as an observation of the asset of the queue's dead
        letters.
    """
    of = Database(database)
    return [
        _job(of, add_dead_letters, AddConfig),
        _job(of, replay_dead_letters, ReplayConfig),
        _job(of, purge_dead_letters, PurgeConfig),
    ]


class QueueConfig(dg.Config):
    """The queue to work on."""

    queue: str = Field(description="The queue's name.")


class AddConfig(QueueConfig):
    """Which events to set aside."""

    consumer: str = Field(
        description="The consumer whose open batch has the events; if several subconsumers or "
        "slots have a batch open, the name of one, such as revenue.1 or revenue#3/8."
    )
    events: list[int] = Field(
        description="The ids of the events, as the error of the failed run names them."
    )
    reason: str = Field(
        default="set aside by hand", description="What is stored with the dead letters."
    )


class ReplayConfig(QueueConfig):
    """Which dead letters to send again. Each field is an optional filter."""

    reason: str | None = Field(
        default=None,
        min_length=1,
        description="Only those with this reason; % matches any text, _ any character.",
    )
    type: str | None = Field(default=None, min_length=1, description="Only events of this type.")
    since: str | None = Field(
        default=None,
        pattern=PATTERN,
        description="Only those of this age or younger: 90s, 15m, 12h, 30d.",
    )
    limit: int | None = Field(
        default=None, ge=1, description="The maximum number; the oldest are replayed first."
    )


class PurgeConfig(QueueConfig):
    """Which dead letters to delete."""

    older_than_days: float = Field(
        default=30.0,
        ge=0,
        description="Only those at least this many days old, such as 0.5; 0 for all.",
    )


@dataclass(frozen=True)
class _Done:
    """The result of a job: numbers, and why some of it could not be done."""

    counts: dict[str, int]
    problem: str | None = None


def add_dead_letters(client: Client, config: AddConfig) -> _Done:
    """Makes events of a consumer's open batch dead letters, so that it continues without them."""
    done = client.set_events_aside(
        config.queue, config.consumer, config.events, reason=config.reason
    )
    return _Done({"added": done.dead_lettered, "batch": done.batch_id})


def replay_dead_letters(client: Client, config: ReplayConfig) -> _Done:
    """Sends each dead letter again, only to the consumer that gave up on it."""
    replayed, failed, first_error = client.replay_dead_letters(
        config.queue,
        reason=config.reason,
        type=config.type,
        since=datetime.now(UTC) - parse_duration(config.since) if config.since else None,
        limit=config.limit,
    )
    counts = {"replayed": replayed, "not_replayed": failed}
    if not failed:
        return _Done(counts)
    return _Done(
        counts,
        f"{failed} dead letters could not be replayed and stay where they are; the first because: "
        f"{first_error}",
    )


def purge_dead_letters(client: Client, config: PurgeConfig) -> _Done:
    """Deletes dead letters for good; export them first if you may want them again."""
    age = timedelta(days=config.older_than_days)
    return _Done({"purged": client.purge_dead_letters(config.queue, age)})


def _job(
    database: Database, work: Callable[[Client, Any], _Done], config_class: type[QueueConfig]
) -> dg.JobDefinition:
    name, description = work.__name__, work.__doc__

    @dg.op(name=database.named(name), description=description)
    @takes_resource(database)
    def operate(
        context: dg.OpExecutionContext,
        config: config_class,  # type: ignore[valid-type]
        pgque: PgqueResource,
    ) -> None:
        queue: str = config.queue  # type: ignore[attr-defined]
        with log_error_line(context.log), pgque.client() as client:
            done = work(client, config)
            left = sum(count.count for count in client.dead_letter_counts(queue))
            pages = report_queues(client, [queue], consumers_of_location(context), database)
        counts = {**done.counts, "left": left}
        context.log.info(", ".join(f"{what}: {count}" for what, count in counts.items()))
        context.add_output_metadata(counts)
        # The UI shows the latest observation, so this one repeats what the page shows.
        key = database.dead_letters_key(queue)
        metadata = {**pages.get(key, {}), "job": context.job_name, **counts}
        context.log_event(dg.AssetObservation(key, metadata=metadata))
        if done.problem is not None:
            raise dg.Failure(done.problem, metadata=counts, allow_retries=False)

    graph = dg.GraphDefinition(
        database.named(f"pgque_{name}"), node_defs=[operate], description=description
    )
    return graph.to_job(executor_def=dg.in_process_executor)

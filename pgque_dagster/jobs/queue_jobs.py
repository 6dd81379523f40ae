"""The jobs and their ops: add, replay and purge dead letters."""

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from ..client.client import Client
from ..client.ranges import PATTERN, parse_duration
from ..project.consumers import consumers_of_location
from ..project.keys import dead_letters_key
from ..project.queue_report import Metadata, report_queues
from ..project.resource import PgqueResource
from ..project.step_errors import log_error_line


def build_pgque_jobs() -> list[dg.JobDefinition]:
    """Builds the jobs for operating dead letters. The config of each run names the queue.

    Returns:
        `pgque_add_dead_letters`, `pgque_replay_dead_letters` and `pgque_purge_dead_letters`. Add
        them to the Definitions once. They need the resource `pgque`. Each run records its result as
        an observation of the asset of the queue's dead letters.
    """
    return [_job(op) for op in (add_dead_letters, replay_dead_letters, purge_dead_letters)]


def _job(op: dg.OpDefinition) -> dg.JobDefinition:
    graph = dg.GraphDefinition(f"pgque_{op.name}", node_defs=[op], description=op.description)
    return graph.to_job(executor_def=dg.in_process_executor)


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
    """Which dead letters to send again. A field that is left out excludes none."""

    reason: str | None = Field(
        default=None,
        min_length=1,
        description="Only those given up for this reason; % matches any text, _ any character.",
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
        description="Only those given up at least this many days ago, such as 0.5; 0 for all.",
    )


@dg.op
def add_dead_letters(
    context: dg.OpExecutionContext, config: AddConfig, pgque: PgqueResource
) -> None:
    """Makes events of a consumer's open batch dead letters, so that it goes on without them."""
    with log_error_line(context.log), pgque.client() as client:
        done = client.set_events_aside(
            config.queue, config.consumer, config.events, reason=config.reason
        )
        left, page = _left(context, client, config.queue)
    counts = {"added": done.dead_lettered, "batch": done.batch_id, "left": left}
    _report(context, config.queue, counts, page)


@dg.op
def replay_dead_letters(
    context: dg.OpExecutionContext, config: ReplayConfig, pgque: PgqueResource
) -> None:
    """Sends dead letters again, each to the consumer that gave it up and to no other."""
    with log_error_line(context.log), pgque.client() as client:
        replayed, failed, first_error = client.replay_dead_letters(
            config.queue,
            reason=config.reason,
            type=config.type,
            since=datetime.now(UTC) - parse_duration(config.since) if config.since else None,
            limit=config.limit,
        )
        left, page = _left(context, client, config.queue)
    counts = {"replayed": replayed, "not_replayed": failed, "left": left}
    _report(context, config.queue, counts, page)
    if failed:
        raise dg.Failure(
            f"{failed} dead letters could not be replayed and stay where they are; the first "
            f"because: {first_error}",
            metadata=counts,
            allow_retries=False,
        )


@dg.op
def purge_dead_letters(
    context: dg.OpExecutionContext, config: PurgeConfig, pgque: PgqueResource
) -> None:
    """Deletes dead letters for good; export them first if they may be wanted again."""
    with log_error_line(context.log), pgque.client() as client:
        purged = client.purge_dead_letters(config.queue, timedelta(days=config.older_than_days))
        left, page = _left(context, client, config.queue)
    _report(context, config.queue, {"purged": purged, "left": left}, page)


def _left(context: dg.OpExecutionContext, client: Client, queue: str) -> tuple[int, Metadata]:
    """Returns how many dead letters are left, and what their page shows."""
    key = dead_letters_key(queue)
    page = report_queues(client, [queue], consumers_of_location(context)).get(key, {})
    return sum(count.count for count in client.dead_letter_counts(queue)), page


def _report(
    context: dg.OpExecutionContext, queue: str, counts: dict[str, Any], page: Metadata
) -> None:
    """Records a result in the log, on the step, and as an observation of the dead letters.

    The UI shows the latest observation, so this one repeats what the page shows.
    """
    context.log.info(", ".join(f"{name}: {value}" for name, value in counts.items()))
    context.add_output_metadata(counts)
    key, metadata = dead_letters_key(queue), {**page, "job": context.job_name, **counts}
    context.log_event(dg.AssetObservation(key, metadata=metadata))

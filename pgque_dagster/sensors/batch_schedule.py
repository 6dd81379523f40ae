"""`build_pgque_schedule`: at fixed times, one run for each consumer, with a batch of its events.

It replaces a sensor, and requests runs as the sensor does: with the same claims, attempts and
tags.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import dagster as dg

from ..client.ranges import DEFAULT_MAX_EVENTS
from ..project.consumers import consumers_of, database_of, repository_of
from ..project.resource import PgqueResource, takes_resource
from .batch_policy import BatchPolicy, OnExhausted
from .run_requests import BatchFinder, without_step_process


def build_pgque_schedule(
    assets: Sequence[dg.AssetsDefinition],
    *,
    cron_schedule: str,
    name: str | None = None,
    execution_timezone: str | None = None,
    max_events: int = DEFAULT_MAX_EVENTS,
    max_attempts: int = 3,
    backoff: timedelta = timedelta(seconds=10),
    on_exhausted: OnExhausted = "hold",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Builds a schedule that starts the runs of the assets' consumers, instead of a sensor.

    At each scheduled time it requests one run for each consumer with events, for one batch of up to
    `max_events`. Further events wait for the next time. Failed batches are retried at the next
    times, as with `build_pgque_sensor`.

    Args:
        assets: assets made by `@pgque_asset`, of one database, each with its own consumer.
        cron_schedule: the times, such as `0 * * * *` for every hour.
        name: the schedule's name; by default `pgque_schedule`, with the database in front.
        execution_timezone: the time zone of `cron_schedule`; by default UTC.
        max_events: the approximate maximum number of events in a batch; a tick is never split.
        max_attempts: as for `build_pgque_sensor`.
        backoff: as for `build_pgque_sensor`.
        on_exhausted: as for `build_pgque_sensor`.
        default_status: RUNNING, or STOPPED until somebody switches the schedule on in the UI.

    Returns:
        The schedule. It needs the resource of the assets' database.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, two assets share a consumer,
            or an option is out of range.
    """
    consumers = consumers_of(assets)
    database = database_of(consumers)
    policy = BatchPolicy(max_events, max_attempts, backoff, on_exhausted)
    policy.check("schedule")

    @dg.schedule(
        name=name or database.named("pgque_schedule"),
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        target=list(assets),
        default_status=default_status,
        description="Starts one run for a batch of each: "
        + "; ".join(f"queue {each.queue}, consumer {each.name}" for each in consumers),
    )
    @takes_resource(database)
    def pgque_schedule(
        context: dg.ScheduleEvaluationContext, pgque: PgqueResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        config = without_step_process(repository_of(context), pgque_schedule.job_name)
        with pgque.client() as client:
            finder = BatchFinder.of(context, pgque, client, database, policy, config)
            findings = finder.find(consumers)
        if not findings.requests:
            yield dg.SkipReason("; ".join(findings.reasons))
            return
        for reason in findings.reasons:
            context.log.info(reason)
        yield from findings.requests

    return pgque_schedule

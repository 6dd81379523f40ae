"""`build_pgque_sensor`: requests one run for each batch of each consumer.

The sensor opens the batch and the run claims it. `run_requests.py` decides which batches get runs.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from datetime import timedelta
from functools import partial

import dagster as dg

from ..client.ranges import DEFAULT_MAX_EVENTS, count_problem, duration_problem
from ..project.consumers import AssetConsumer, consumers_of, database_of, repository_of
from ..project.database import DEFAULT_DATABASE
from ..project.keys import WAITS, switching_on
from ..project.resource import PgqueResource, takes_resources
from .batch_policy import BatchPolicy, OnExhausted
from .databases import DatabasesFinder
from .run_requests import Findings, without_step_process
from .tick_wait import share_of_wait

# Dagster ends an evaluation after a minute.
_LONGEST_WAIT = timedelta(seconds=30)


def build_pgque_sensor(
    assets: Sequence[dg.AssetsDefinition],
    *,
    name: str | None = None,
    min_events: int = 1,
    max_events: int = DEFAULT_MAX_EVENTS,
    max_age: timedelta = timedelta(seconds=60),
    max_attempts: int = 3,
    backoff: timedelta = timedelta(seconds=10),
    on_exhausted: OnExhausted = "hold",
    tick_wait: timedelta = timedelta(seconds=5),
    minimum_interval_seconds: int = 1,
    with_checks: bool = True,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.SensorDefinition:
    """Builds the sensor that requests one run for each batch of the assets' consumers.

    A batch is opened when `min_events` events wait or the oldest has waited `max_age`; in a backlog
    it has up to `max_events` events. After a failed run the batch is retried after `backoff`, which
    doubles each time, up to `max_attempts` claims. The consumers take turns at being first.

    Args:
        assets: assets made by `@pgque_asset`, of one database, each with its own consumer; or one
            with `databases`, whose batches get a run together.
        name: the sensor's name; by default `pgque_sensor`, with the database in front.
        min_events: the minimum number of events for a run.
        max_events: the approximate maximum number of events in a run; a tick is never split.
        max_age: how long an event waits for `min_events` to be reached.
        max_attempts: how many runs may claim a batch and fail. Runs that end before they claim do
            not count.
        backoff: the wait after the first failure; it doubles with each run, up to 10 minutes.
        on_exhausted: what happens to a batch after its last attempt has failed. `hold` keeps it and
            the batches after it, until somebody materializes the asset by hand. `dead_letter` makes
            all its events dead letters and continues with the next batch.
        tick_wait: how long an evaluation that finds nothing to do waits for a tick. The sensors of
            a code location share this time, because Dagster evaluates them one after another.
        minimum_interval_seconds: the minimum time between the starts of two evaluations. Dagster's
            daemon starts one every 5 seconds at most, and with `WarmRunLauncher` every second.
        with_checks: whether runs also execute the checks that other definitions have on the assets.
            Checks that are part of an asset are always executed.
        default_status: RUNNING, or STOPPED until somebody switches the sensor on in the UI.

    Returns:
        The sensor. It needs the resource of the assets' database.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, two assets share a consumer,
            or an option is out of range.
    """
    consumers = consumers_of(assets)
    shards = [each.database.name for each in consumers if each.shard is not None]
    database = DEFAULT_DATABASE if shards else database_of(consumers)
    policy = BatchPolicy(max_events, max_attempts, backoff, on_exhausted, min_events, max_age)
    policy.check(
        "sensor",
        count_problem("minimum_interval_seconds", minimum_interval_seconds),
        duration_problem("tick_wait", tick_wait, at_most=_LONGEST_WAIT),
        _problem_of_shards(assets, policy) if shards else None,
    )
    as_sensor = partial(
        dg.sensor,
        name=name or database.named("pgque_sensor"),
        target=dg.AssetSelection.assets(*assets),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=_description(consumers, policy, default_status),
        tags={WAITS: "true"} if tick_wait else None,
    )

    @as_sensor()
    @takes_resources(shards or [database.name])
    def pgque_sensor(
        context: dg.SensorEvaluationContext, resources: Mapping[str, PgqueResource]
    ) -> dg.SensorResult | dg.SkipReason:
        repository = repository_of(context)
        config = without_step_process(repository, pgque_sensor.job_name)
        with ExitStack() as stack:
            finder = DatabasesFinder(context, resources, consumers, policy, config, stack)
            findings = finder.find_within(share_of_wait(tick_wait, repository, context.cursor))
        return _result(context, findings, with_checks=with_checks)

    return pgque_sensor


def _result(
    context: dg.SensorEvaluationContext, findings: Findings, *, with_checks: bool
) -> dg.SensorResult | dg.SkipReason:
    if not findings.requests:
        context.update_cursor(findings.next_first)
        return dg.SkipReason("; ".join(findings.reasons))
    for reason in findings.reasons:
        context.log.info(reason)
    requests = findings.requests
    if not with_checks:
        # A run of some of the job's assets executes all their checks, although the job has none.
        requests = [request.with_replaced_attrs(asset_check_keys=[]) for request in requests]
    return dg.SensorResult(run_requests=requests, cursor=findings.next_first)


def _problem_of_shards(assets: Sequence[dg.AssetsDefinition], policy: BatchPolicy) -> str | None:
    if len(assets) > 1:
        return "asset with databases=[…] needs a sensor of its own"
    if policy.max_attempts == 1:
        return (
            "max_attempts must be more than 1: after a failure, each shard's batch is retried alone"
        )
    return None


def _description(
    consumers: Sequence[AssetConsumer], policy: BatchPolicy, status: dg.DefaultSensorStatus
) -> str:
    """Describes the consumers and the options for the UI."""
    named = "; ".join(
        f"queue {each.queue}, consumer {each.name}, asset "
        + ", ".join(key.to_user_string() for key in each.asset_keys)
        + ("" if each.partitions is None else f", in each of partitions={each.partitions} slots")
        for each in consumers
    )
    options = ", ".join(f"{each.name}={getattr(policy, each.name)}" for each in fields(policy))
    return (
        f"Starts one run for each batch of: {named}. While this sensor is off, nothing is consumed "
        f"unless a person does it, and the events wait in the queue.{switching_on(status)} "
        f"A skipped evaluation says what each consumer waits for. Options: {options}."
    )

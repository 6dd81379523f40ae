"""`build_pgque_sensor`: one run for each finished batch of each consumer.

The batch is opened here and claimed by the run. Which attempt is due is derived from the runs that
Dagster recorded and the lease that the database holds, so the sensor keeps no state of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from .client import BatchLeased, Client, LeaseInfo, Limits, PgqueError
from .resources import PgqueResource
from .tags import ATTEMPT, BATCH_ID, CONSUMER, QUEUE

_IN_PROGRESS = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
# A run that has not claimed its batch after so long has died before it could.
_START_UP = timedelta(minutes=15)


@dataclass(frozen=True)
class Consumer:
    """A consuming asset, as the sensor sees it."""

    queue: str
    name: str
    asset_key: dg.AssetKey

    @classmethod
    def of(cls, asset: dg.AssetsDefinition) -> "Consumer":
        """Reads the consumer from an asset made by `@pgque_asset`."""
        spec = next(iter(asset.specs))
        if QUEUE not in spec.metadata or CONSUMER not in spec.metadata:
            raise dg.DagsterInvalidDefinitionError(
                f"asset {spec.key.to_user_string()} consumes no queue: make it with @pgque_asset"
            )
        return cls(spec.metadata[QUEUE], spec.metadata[CONSUMER], spec.key)

    def __str__(self) -> str:
        return f"{self.queue}/{self.name}"


@dataclass(frozen=True)
class RetryPolicy:
    """How often a batch is tried, and how long after a failure; the wait doubles each time."""

    max_attempts: int
    backoff: timedelta

    def wait_after(self, attempts: int) -> timedelta:
        """Returns how long to wait after so many attempts."""
        return self.backoff * float(2 ** (attempts - 1))


def build_pgque_sensor(
    assets: Sequence[dg.AssetsDefinition],
    *,
    name: str = "pgque_sensor",
    min_events: int = 1,
    max_events: int = 1_000_000,
    max_age: timedelta = timedelta(seconds=60),
    max_attempts: int = 3,
    backoff: timedelta = timedelta(seconds=10),
    minimum_interval_seconds: int = 5,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Makes the sensor that starts one run for each batch of the given assets' consumers.

    A batch is opened when `min_events` are there or the oldest waited `max_age`; in a backlog it
    takes up to `max_events` at once. A failed batch is tried again after `backoff`, doubled each
    time, up to `max_attempts`; then it is held, for somebody to materialize the asset by hand.

    Args:
        assets: assets made by `@pgque_asset`; one consumer each.
        name: the sensor's name.
        min_events: how many events are worth a run.
        max_events: how many events one run takes, about: a tick is never split.
        max_age: how long events wait for others.
        max_attempts: how many runs a batch gets.
        backoff: the wait after the first failure.
        minimum_interval_seconds: between two evaluations.
        default_status: whether the sensor runs without being switched on.

    Returns:
        The sensor. It needs the resource `pgque`.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, or two share a consumer.
    """
    consumers = [Consumer.of(asset) for asset in assets]
    names = [str(consumer) for consumer in consumers]
    for shared in {x for x in names if names.count(x) > 1}:
        raise dg.DagsterInvalidDefinitionError(
            f"two assets share the consumer {shared}: each asset needs a consumer of its own"
        )
    limits = Limits(min_count=min_events, min_interval=max_age, max_count=max_events)
    policy = RetryPolicy(max_attempts, backoff)

    @dg.sensor(
        name=name,
        target=list(assets),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description="Starts one run for each finished batch.",
    )
    def pgque_sensor(
        context: dg.SensorEvaluationContext, pgque: PgqueResource
    ) -> dg.SensorResult | dg.SkipReason:
        decisions: list[dg.RunRequest | str] = []
        try:
            with pgque.client() as client:
                for consumer in consumers:
                    try:
                        decision = _evaluate(context, pgque, client, consumer, limits, policy)
                    except PgqueError as error:
                        decision = f"{consumer}: {error}"
                    decisions.append(decision)
        except PgqueError as error:
            decisions.append(str(error))
        return _result(context, decisions)

    return pgque_sensor


def _result(
    context: dg.SensorEvaluationContext, decisions: Iterable[dg.RunRequest | str]
) -> dg.SensorResult | dg.SkipReason:
    requests = [decision for decision in decisions if isinstance(decision, dg.RunRequest)]
    reasons = [decision for decision in decisions if isinstance(decision, str)]
    if not requests:
        return dg.SkipReason("; ".join(reasons))
    for reason in reasons:
        context.log.info(reason)
    return dg.SensorResult(run_requests=requests)


def _evaluate(
    context: dg.SensorEvaluationContext,
    pgque: PgqueResource,
    client: Client,
    consumer: Consumer,
    limits: Limits,
    policy: RetryPolicy,
) -> dg.RunRequest | str:
    """Decides on one consumer: the run to request, or why there is none."""
    pgque.ensure_consumer(client, consumer.queue, consumer.name)
    while True:
        try:
            batch_id = client.next_batch(*_names(consumer), limits)
        except BatchLeased as error:
            return str(error)
        if batch_id is None:
            return f"{consumer}: no batch yet"
        tags = {QUEUE: consumer.queue, CONSUMER: consumer.name, BATCH_ID: str(batch_id)}
        runs = context.instance.get_run_records(dg.RunsFilter(tags=tags))
        # To look for events costs a pass over the batch, so a batch is looked into only once.
        if runs or client.read_plan(batch_id, 1).events:
            break
        client.finish_batch(batch_id)

    reason = _why_not_now(consumer, batch_id, runs, client.lease_info(*_names(consumer)), policy)
    if reason:
        return reason
    attempt = len(runs) + 1
    return dg.RunRequest(
        run_key=f"{consumer.queue}:{consumer.name}:{batch_id}:{attempt}",
        asset_selection=[consumer.asset_key],
        # Dagster's own retries would run the batch beside the next attempt of this sensor.
        tags={**tags, ATTEMPT: str(attempt), "dagster/max_retries": "0"},
    )


def _names(consumer: Consumer) -> tuple[str, str]:
    return consumer.queue, consumer.name


def _why_not_now(
    consumer: Consumer,
    batch_id: int,
    runs: Sequence[dg.RunRecord],
    lease: LeaseInfo | None,
    policy: RetryPolicy,
) -> str | None:
    """Returns why the batch gets no run now, or None when it does."""
    batch = f"batch {batch_id} of {consumer}"
    now = datetime.now(UTC)
    for record in runs:
        run = record.dagster_run
        if run.status in _IN_PROGRESS and not _has_died(record, lease, now):
            return f"{batch}: run {run.run_id[:8]} is {run.status.value.lower()}"
    if not runs:
        return None

    newest = max(runs, key=lambda record: record.create_timestamp)
    if len(runs) >= policy.max_attempts:
        return (
            f"{batch}: held after {len(runs)} attempts, the last in run "
            f"{newest.dagster_run.run_id[:8]}; mend the cause and materialize "
            f"{consumer.asset_key.to_user_string()} by hand"
        )
    ended = datetime.fromtimestamp(newest.end_time, UTC) if newest.end_time else now
    again_at = ended + policy.wait_after(len(runs))
    if newest.end_time and now < again_at:
        return f"{batch}: attempt {len(runs) + 1} at {again_at:%H:%M:%S} UTC"
    return None


def _has_died(record: dg.RunRecord, lease: LeaseInfo | None, now: datetime) -> bool:
    """Whether a run in progress cannot be alive: it let its lease run out, or never got to one."""
    if lease is not None and lease.owner and lease.owner.endswith(record.dagster_run.run_id):
        return not lease.is_live
    return now - record.create_timestamp > _START_UP

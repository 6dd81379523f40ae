"""Observable assets for queues and their dead letters."""

import warnings
from collections.abc import Sequence

import dagster as dg

from ..client import QueueNotFound
from .consumers import AssetConsumer, consumers_of_location
from .keys import QUEUE, dead_letters_key, identifier, queue_key
from .queue_report import PURGE_JOB, REPLAY_JOB, report_queues
from .registration import how_to_create
from .resource import PgqueResource
from .step_errors import log_error_line


def build_queue_assets(
    queue: str,
    *,
    group_name: str = "pgque",
    producers: Sequence[dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | str] = (),
    consumers: Sequence[dg.AssetsDefinition | AssetConsumer | str] = (),
) -> list[dg.AssetsDefinition]:
    """Builds the observable assets of one queue. Add them to the Definitions once.

    The button Observe on their pages records the current numbers, as the sensor of
    `build_pgque_observation_sensor` does at intervals.

    Args:
        queue: the queue's name.
        group_name: the group of the assets.
        producers: the assets that send the events, such as a table with a trigger. They are shown
            upstream of the queue.
        consumers: assets made by `@pgque_asset`, which are then upstream of the dead letters; and
            names of consumers outside Dagster, for the queue's description.

    Returns:
        The queue `<queue>_queue`, and its dead letters `<queue>_dlq`, downstream of the consumers.
        They need the resource `pgque` when they are observed.

    Raises:
        DagsterInvalidDefinitionError: if one of the consumers consumes no queue, or another one.
    """
    found = [_consumer(queue, each) for each in consumers]
    assets = [key for each in found for key in each.asset_keys]
    names = [each.name for each in found]
    return [
        _observable(
            queue,
            dg.AssetSpec(
                queue_key(queue),
                deps=list(producers),
                description=_queue_description(queue, names),
                group_name=group_name,
                kinds={"postgres"},
                metadata={QUEUE: queue},
            ),
        ),
        _observable(
            queue,
            dg.AssetSpec(
                dead_letters_key(queue),
                deps=assets or [queue_key(queue)],
                description=_dead_letters_description(queue),
                group_name=group_name,
                kinds={"postgres", "table"},
                metadata={QUEUE: queue, "dagster/table_name": "pgque.dead_letter"},
            ),
        ),
    ]


def _consumer(queue: str, consumer: dg.AssetsDefinition | AssetConsumer | str) -> AssetConsumer:
    if isinstance(consumer, str):
        return AssetConsumer(queue, consumer, ())
    found = consumer if isinstance(consumer, AssetConsumer) else AssetConsumer.of(consumer)
    if found.queue != queue:
        raise dg.DagsterInvalidDefinitionError(
            f"consumer {found} is not on queue {queue}: pass it to build_queue_assets of its queue"
        )
    return found


def _observable(queue: str, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    """Makes a spec observable, because Dagster calls any other one never materialized."""
    with warnings.catch_warnings():
        # The only decorator for an observable asset with upstream assets is in beta.
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate = dg.multi_observable_source_asset(
            name=f"observe_{identifier(spec.key.path[-1])}", specs=[spec]
        )

    def observe(context: dg.AssetExecutionContext, pgque: PgqueResource) -> dg.ObserveResult:
        consumers = consumers_of_location(context)
        with log_error_line(context.log), pgque.client() as client:
            reports = report_queues(client, [queue], consumers)
            if spec.key not in reports:
                raise QueueNotFound(f'queue "{queue}" does not exist', how_to_create(queue))
        return dg.ObserveResult(asset_key=spec.key, metadata=reports[spec.key])

    asset: dg.AssetsDefinition = decorate(observe)
    return asset


def _queue_description(queue: str, consumers: Sequence[str]) -> str:
    named = ", ".join(f"`{consumer}`" for consumer in dict.fromkeys(consumers))
    return (
        f"The pgque queue `{queue}`, in Postgres. It keeps each event until all of its consumers "
        "have finished it.\n\n"
        f"**Consumers:** {f'{named}, and any other asset' if named else 'the assets'} downstream. "
        "`pgque/consumers` in the metadata lists all registered ones; so does "
        f"`pgque status {queue}`.\n\n"
        "**The metadata is old or missing?** Press Observe, or switch the observation sensor on "
        "under Automation.\n\n"
        "**When a check is red:** `what_to_do` in its metadata, `pgque/what_is_wrong` here and "
        "`pgque health` say what is wrong and what to run. Events wait in the queue meanwhile.\n\n"
        "**What mends what:** a parked batch: correct the cause, then Materialize on its asset's "
        f"page. A paused queue: `pgque resume {queue}`. Dead letters: the job `{REPLAY_JOB}`. A "
        "consumer that falls behind: switch its sensor on, and look at its runs."
    )


def _dead_letters_description(queue: str) -> str:
    return (
        f"Events of the queue `{queue}` that a consumer gave up, each with its reason. They stay "
        "in Postgres until somebody replays or purges them. `pgque/by_consumer_and_reason` in the "
        "metadata counts them; none is the normal state.\n\n"
        f"**When a check is red:** see the reasons in its metadata, or run "
        f"`pgque dead-letters list {queue}`. Correct the cause, then send the events again to the "
        f"consumers that gave them up, with the job `{REPLAY_JOB}` or "
        f"`pgque dead-letters replay {queue}`. To delete them instead, use the job "
        f"`{PURGE_JOB}` or `pgque dead-letters purge {queue}`."
    )

"""Observable assets for queues and their dead letters."""

import warnings
from collections.abc import Sequence

import dagster as dg

from ..client import QueueNotFound
from .consumers import AssetConsumer, consumers_of_location
from .database import DEFAULT, Database
from .keys import QUEUE, identifier
from .queue_report import PURGE_JOB, REPLAY_JOB, report_queues
from .registration import how_to_create
from .resource import PgqueResource, takes_resource
from .step_errors import log_error_line


def build_queue_assets(
    queue: str,
    *,
    database: str = DEFAULT,
    group_name: str = "pgque",
    producers: Sequence[dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | str] = (),
    consumers: Sequence[dg.AssetsDefinition | AssetConsumer | str] = (),
) -> list[dg.AssetsDefinition]:
    """Builds the observable assets of one queue. Add them to the Definitions once.

    The button Observe on their pages records the current numbers, as the sensor of
    `build_pgque_observation_sensor` does at intervals.

    Args:
        queue: the queue's name.
        database: the key of the PgqueResource whose database has the queue. The keys of the assets
            begin with it.
        group_name: the group of the assets.
        producers: the assets that send the events, such as a table with a trigger. They are shown
            upstream of the queue.
        consumers: assets made by `@pgque_asset`, which are then upstream of the dead letters; and
            names of consumers outside Dagster, for the queue's description.

    Returns:
        The queue `<queue>_queue`, and its dead letters `<queue>_dlq`, downstream of the consumers.
        They need the resource of the database when they are observed.

    Raises:
        DagsterInvalidDefinitionError: if one of the consumers consumes no queue, or another queue.
    """
    of = Database(database)
    found = [_consumer(of, queue, each) for each in consumers]
    assets = [key for each in found for key in each.asset_keys]
    names = [each.name for each in found]
    return [
        _observable(
            of,
            queue,
            dg.AssetSpec(
                of.queue_key(queue),
                deps=list(producers),
                description=_queue_description(of, queue, names),
                group_name=group_name,
                kinds={"postgres"},
                metadata={**of.tags, QUEUE: queue},
            ),
        ),
        _observable(
            of,
            queue,
            dg.AssetSpec(
                of.dead_letters_key(queue),
                deps=assets or [of.queue_key(queue)],
                description=_dead_letters_description(of, queue),
                group_name=group_name,
                kinds={"postgres", "table"},
                metadata={**of.tags, QUEUE: queue, "dagster/table_name": "pgque.dead_letter"},
            ),
        ),
    ]


def _consumer(
    database: Database, queue: str, consumer: dg.AssetsDefinition | AssetConsumer | str
) -> AssetConsumer:
    if isinstance(consumer, str):
        return AssetConsumer(queue, consumer, (), database=database)
    given = [consumer] if isinstance(consumer, AssetConsumer) else AssetConsumer.all_of(consumer)
    for found in given:
        if (found.database, found.queue) == (database, queue):
            return found
    raise dg.DagsterInvalidDefinitionError(
        f"consumer {given[0]} is not on queue {queue} of database {database.name}: pass it to "
        "build_queue_assets of its queue"
    )


def _observable(database: Database, queue: str, spec: dg.AssetSpec) -> dg.AssetsDefinition:
    """Makes a spec observable, because Dagster calls any other one never materialized."""
    with warnings.catch_warnings():
        # The only decorator for an observable asset with upstream assets is in beta.
        warnings.simplefilter("ignore", dg.BetaWarning)
        decorate = dg.multi_observable_source_asset(
            name=database.named(f"observe_{identifier(spec.key.path[-1])}"), specs=[spec]
        )

    @takes_resource(database)
    def observe(context: dg.AssetExecutionContext, pgque: PgqueResource) -> dg.ObserveResult:
        consumers = consumers_of_location(context)
        with log_error_line(context.log), pgque.client() as client:
            reports = report_queues(client, [queue], consumers, database)
            if spec.key not in reports:
                hint = how_to_create(queue, database)
                raise QueueNotFound(f'queue "{queue}" does not exist', hint)
        return dg.ObserveResult(asset_key=spec.key, metadata=reports[spec.key])

    asset: dg.AssetsDefinition = decorate(observe)
    return asset


def _queue_description(database: Database, queue: str, consumers: Sequence[str]) -> str:
    command = database.command
    named = ", ".join(f"`{consumer}`" for consumer in dict.fromkeys(consumers))
    return (
        f"The {database.name} queue `{queue}`, in Postgres. It keeps each event until all of its "
        "consumers have finished it.\n\n"
        f"**Consumers:** {f'{named}, and any other asset' if named else 'the assets'} downstream. "
        "`pgque/consumers` in the metadata lists all registered ones; so does "
        f"`{command} status {queue}`.\n\n"
        "**The metadata is old or missing?** Press Observe, or look under Automation whether the "
        "sensor that observes the queue is on.\n\n"
        "**When a check is red:** `what_to_do` in its metadata, `pgque/what_is_wrong` here and "
        f"`{command} health` say what is wrong and what to run. Events wait in the queue "
        "meanwhile.\n\n"
        "**How to fix it:** a held batch: correct the cause, then Materialize on its asset's "
        f"page. A paused queue: `{command} resume {queue}`. Dead letters: "
        f"`{command} dead-letters replay {queue}`. A consumer that falls behind: turn its "
        "sensor on, and look at its runs."
    )


def _dead_letters_description(database: Database, queue: str) -> str:
    command = f"{database.command} dead-letters"
    return (
        f"Events of the queue `{queue}` that a consumer gave up on, each with its reason. They "
        "stay in Postgres until you replay or purge them. `pgque/by_consumer_and_reason` in the "
        "metadata counts them; none is the normal state.\n\n"
        f"**When a check is red:** see the reasons in its metadata, or run "
        f"`{command} list {queue}`. Correct the cause, then send the events again to the "
        f"consumers that gave up on them: `{command} replay {queue}`. To delete them instead, use "
        f"`{command} purge {queue}`. In a project with `build_pgque_jobs` or a PgqueComponent, the "
        f"jobs `{database.named(REPLAY_JOB)}` and `{database.named(PURGE_JOB)}` do the same."
    )

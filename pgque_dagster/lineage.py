"""External assets for queues and their dead letters, and the freshness policy of consumers."""

from collections.abc import Sequence
from datetime import timedelta

import dagster as dg

from .keys import QUEUE, dead_letters_key, queue_key

# Dagster evaluates freshness at most once a minute.
_SHORTEST_WINDOW = timedelta(minutes=1)


def build_queue_assets(
    queue: str,
    *,
    group_name: str = "pgque",
    producers: Sequence[dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | str] = (),
    consumers: Sequence[str] = (),
) -> list[dg.AssetSpec]:
    """Builds the external assets of one queue. Add them to the Definitions once.

    Args:
        queue: the queue's name.
        group_name: the group of the assets.
        producers: the assets that send the events, such as a table with a trigger. They are shown
            upstream of the queue.
        consumers: names of consumers for the queue's description, also those outside Dagster.

    Returns:
        The queue `<queue>_queue` and, downstream of it, its dead letters `<queue>_dlq`.
    """
    return [
        dg.AssetSpec(
            queue_key(queue),
            deps=list(producers),
            description=_queue_description(queue, consumers),
            group_name=group_name,
            kinds={"postgres"},
            metadata={QUEUE: queue},
        ),
        dg.AssetSpec(
            dead_letters_key(queue),
            deps=[queue_key(queue)],
            description=_dead_letters_description(queue),
            group_name=group_name,
            kinds={"postgres", "table"},
            metadata={QUEUE: queue, "dagster/table_name": "pgque.dead_letter"},
        ),
    ]


def _queue_description(queue: str, consumers: Sequence[str]) -> str:
    named = ", ".join(f"`{consumer}`" for consumer in dict.fromkeys(consumers))
    return (
        f"The pgque queue `{queue}`, in Postgres. It keeps each event until all of its consumers "
        "have finished it.\n\n"
        f"**Consumers:** {f'{named}, and any other asset' if named else 'the assets'} downstream; "
        f"`pgque consumers {queue}` lists all registered consumers.\n\n"
        "**When a check is red:** `what_to_do` in its metadata says what is wrong and what to run; "
        "`pgque health` says the same. Events wait in the queue meanwhile."
    )


def _dead_letters_description(queue: str) -> str:
    return (
        f"Events of the queue `{queue}` that a consumer gave up, each with its reason. They stay "
        "in Postgres until somebody replays or purges them.\n\n"
        f"**When a check is red:** see the reasons in its metadata, or run "
        f"`pgque dead-letters list {queue}`. Correct the cause, then send the events again to the "
        "consumers that gave them up, with the job `pgque_replay_dead_letters` or "
        f"`pgque dead-letters replay {queue}`. To delete them instead, use the job "
        f"`pgque_purge_dead_letters` or `pgque dead-letters purge {queue}`."
    )


def lag_freshness_policy(
    max_lag: timedelta, *, warn_lag: timedelta | None = None
) -> dg.FreshnessPolicy:
    """Builds the freshness policy of a consuming asset from its maximum lag.

    Dagster measures the age of the last materialization, and without events there are none. So use
    this for queues that always get events, and `build_consumer_lag_checks` for others.

    Args:
        max_lag: at this age the asset is stale; a minute or more.
        warn_lag: from this age on there is a warning; a minute or more, and less than `max_lag`.

    Returns:
        The policy, for the option `freshness_policy` of `@pgque_asset`.

    Raises:
        DagsterInvalidDefinitionError: if a lag is too short, or the warning would come too late.
    """
    if min(max_lag, warn_lag or max_lag) < _SHORTEST_WINDOW:
        raise dg.DagsterInvalidDefinitionError(
            f"a freshness policy of max_lag={max_lag}, warn_lag={warn_lag}: each must be a minute "
            "or more; for less, use build_consumer_lag_checks"
        )
    if warn_lag is not None and warn_lag >= max_lag:
        raise dg.DagsterInvalidDefinitionError(
            f"warn_lag={warn_lag} must be less than max_lag={max_lag}, or it never warns"
        )
    return dg.FreshnessPolicy.time_window(fail_window=max_lag, warn_window=warn_lag)

"""Queues in the lineage: a queue and its dead letters as external assets upstream of consumers."""

import dagster as dg


def queue_key(queue: str) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue."""
    return dg.AssetKey(["pgque", queue])


def dead_letters_key(queue: str) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue's dead letters."""
    return dg.AssetKey(["pgque", queue, "dead_letters"])


def build_queue_assets(queue: str, *, group_name: str = "pgque") -> list[dg.AssetSpec]:
    """Makes the external assets of one queue. Put them into the Definitions once.

    Args:
        queue: the queue's name.
        group_name: the group to show them in.

    Returns:
        The queue and, downstream of it, its dead letters, from which replays come back.
    """
    return [
        dg.AssetSpec(
            queue_key(queue),
            description=f"Events of the pgque queue `{queue}`, in Postgres.",
            group_name=group_name,
            kinds={"postgres"},
            metadata={"pgque/queue": queue},
        ),
        dg.AssetSpec(
            dead_letters_key(queue),
            deps=[queue_key(queue)],
            description=f"Events of `{queue}` that a consumer gave up: replay or purge them.",
            group_name=group_name,
            kinds={"postgres", "table"},
            metadata={"pgque/queue": queue, "dagster/table_name": "pgque.dead_letter"},
        ),
    ]

"""Consumers that stopped and have no asset: what the renaming of an asset leaves behind."""

from collections.abc import Sequence
from datetime import timedelta

from ..assets.replay import REPLAY_CONSUMER
from ..client import ConsumerInfo, HealthCheck
from ..consumers import Consumer

CHECK = "consumer_assets"

# A consumer outside Dagster that is slow, or works on one batch for long, is no orphan.
_IDLE = timedelta(hours=1)


def consumers_without_asset(
    lagging: Sequence[HealthCheck],
    registered: Sequence[ConsumerInfo],
    consumers: Sequence[Consumer] | None,
) -> list[HealthCheck]:
    """Finds consumers that hold up their queue's rotation, do nothing, and are of no asset.

    Consumers outside Dagster are in order as long as they consume: there is a warning only where
    `queue_health()` finds the consumer behind, too, and it was not active for an hour.

    Args:
        lagging: what `queue_health()` found.
        registered: the consumers of the queues.
        consumers: those of the code location's assets; None where the run belongs to none.

    Returns:
        A warning for each.
    """
    if consumers is None:
        return []
    of_assets = {str(consumer) for consumer in consumers}
    behind = {
        f"{each.queue}/{each.check.partition(':')[2]}"
        for each in lagging
        if each.check.startswith("consumer_lag:") and each.status != "ok"
    }
    return [
        _warning(info)
        for info in registered
        if f"{info.queue}/{info.name}" in behind
        and not _names(info) & of_assets
        and not info.name.startswith(REPLAY_CONSUMER)
        and info.last_seen >= _IDLE
    ]


def _names(info: ConsumerInfo) -> set[str]:
    """The consumer, and the one that it is a part of if it is a subconsumer."""
    return {f"{info.queue}/{name}" for name in (info.name, info.name.rpartition(".")[0])}


def _warning(info: ConsumerInfo) -> HealthCheck:
    idle = timedelta(seconds=int(info.last_seen.total_seconds()))
    return HealthCheck(
        info.queue,
        f"{CHECK}:{info.name}",
        "warning",
        f"consumer {info.name} was last active {idle} ago, {info.pending_events} events wait for "
        "it, and no asset of this code location consumes it. If its asset was renamed, give the "
        f"asset consumer={info.name!r}: it goes on where the consumer stands. If nothing consumes "
        f"it any more, run `pgque unregister {info.queue} {info.name}`: the events that wait for "
        "it are then given to nobody",
    )

"""Finds idle consumers without an asset, such as the one left after an asset was renamed."""

from collections.abc import Sequence
from datetime import timedelta

from ..client import ConsumerInfo, HealthCheck
from ..project.consumers import AssetConsumer, names_of

CHECK = "consumer_assets"

# Long enough for a consumer outside Dagster that is slow or works on one batch for long.
_IDLE = timedelta(hours=1)


def consumers_without_asset(
    lagging: Sequence[HealthCheck],
    registered: Sequence[ConsumerInfo],
    consumers: Sequence[AssetConsumer] | None,
) -> list[HealthCheck]:
    """Finds idle consumers that hold up their queue's rotation and belong to no asset.

    Consumers outside Dagster are fine as long as they consume. So there is a warning only if
    `queue_health()` reports the consumer as behind and it was not active for an hour.

    Args:
        lagging: the rows of `queue_health()`.
        registered: the consumers of the queues.
        consumers: those of the code location's assets; None if the run has no code location.

    Returns:
        A warning for each such consumer.
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
        and not {f"{info.queue}/{name}" for name in names_of(info.name)} & of_assets
        and info.last_seen >= _IDLE
    ]


def _warning(info: ConsumerInfo) -> HealthCheck:
    idle = timedelta(seconds=int(info.last_seen.total_seconds()))
    return HealthCheck(
        info.queue,
        f"{CHECK}:{info.name}",
        "warning",
        f"consumer {info.name} was last active {idle} ago, {info.pending_events} events wait for "
        "it, and no asset of this code location consumes it. If its asset was renamed, set "
        f"consumer={info.name!r} on the asset, so that it continues at this consumer's position. "
        f"If the consumer is no longer needed, run `pgque unregister {info.queue} {info.name}`; "
        "the events that wait for it are then not delivered",
    )

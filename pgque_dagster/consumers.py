"""The consumers behind assets, as sensors and workers see them."""

from collections.abc import Iterable
from dataclasses import dataclass

import dagster as dg

from .tags import CONSUMER, QUEUE


@dataclass(frozen=True)
class Consumer:
    """A consumer and the assets that a run of one of its batches materializes."""

    queue: str
    name: str
    asset_keys: tuple[dg.AssetKey, ...]

    @classmethod
    def of(cls, asset: dg.AssetsDefinition) -> "Consumer":
        """Reads the consumer from an asset made by `@pgque_asset`.

        Raises:
            DagsterInvalidDefinitionError: if the asset consumes no queue.
        """
        specs = list(asset.specs)
        if not is_consuming(asset):
            raise dg.DagsterInvalidDefinitionError(
                f"asset {specs[0].key.to_user_string()} consumes no queue: make it with "
                "@pgque_asset"
            )
        metadata = specs[0].metadata
        keys = tuple(sorted((spec.key for spec in specs), key=lambda key: tuple(key.path)))
        return cls(metadata[QUEUE], metadata[CONSUMER], keys)

    def __str__(self) -> str:
        return f"{self.queue}/{self.name}"


def is_consuming(asset: dg.AssetsDefinition) -> bool:
    """Whether `@pgque_asset` made the asset."""
    return any(QUEUE in spec.metadata and CONSUMER in spec.metadata for spec in asset.specs)


def consumers_of(assets: Iterable[dg.AssetsDefinition]) -> list[Consumer]:
    """Returns the consumers of assets, in their order.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, or two share a consumer.
    """
    consumers = [Consumer.of(asset) for asset in assets]
    names = [str(consumer) for consumer in consumers]
    for shared in {name for name in names if names.count(name) > 1}:
        raise dg.DagsterInvalidDefinitionError(
            f"two assets share the consumer {shared}: each asset needs a consumer of its own"
        )
    return consumers

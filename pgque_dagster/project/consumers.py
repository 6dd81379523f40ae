"""The consumers of assets, as recorded by `@pgque_asset` in their metadata."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import dagster as dg

from .database import DEFAULT_DATABASE, Database
from .keys import CONSUMER, PARTITIONS, QUEUE, SHARDS, START_AT

Context = (
    dg.AssetExecutionContext
    | dg.AssetCheckExecutionContext
    | dg.OpExecutionContext
    | dg.SensorEvaluationContext
    | dg.ScheduleEvaluationContext
)


@dataclass(frozen=True)
class AssetConsumer:
    """A consumer and the assets that a run of one of its batches materializes.

    Attributes:
        start_at: where it starts when it is registered; None for the default of `register`.
        partitions: the number of its slots; None without slots.
        database: the database that has the queue.
        shard: the name of the database, if the asset's queue is sharded over several, or None.
    """

    queue: str
    name: str
    asset_keys: tuple[dg.AssetKey, ...]
    start_at: str | None = None
    partitions: int | None = None
    database: Database = DEFAULT_DATABASE
    shard: str | None = None

    @classmethod
    def all_of(cls, asset: dg.AssetsDefinition) -> list["AssetConsumer"]:
        """Returns the consumers of an asset made by `@pgque_asset`: one, or one per shard.

        Raises:
            DagsterInvalidDefinitionError: if the asset consumes no queue.
        """
        specs = list(asset.specs)
        if not is_consuming(asset):
            raise dg.DagsterInvalidDefinitionError(
                f"asset {specs[0].key.to_user_string()} consumes no queue: make it with "
                "@pgque_asset, without partitions_def"
            )
        metadata = specs[0].metadata
        keys = tuple(sorted((spec.key for spec in specs), key=lambda key: tuple(key.path)))
        partitions = metadata.get(PARTITIONS)
        consumer = cls(
            metadata[QUEUE],
            metadata[CONSUMER],
            keys,
            metadata.get(START_AT),
            None if partitions is None else int(partitions),
            Database.of(metadata),
        )
        shards = str(metadata.get(SHARDS, "")).split(",")
        return [
            replace(consumer, database=Database(name), shard=name) for name in filter(None, shards)
        ] or [consumer]

    def __str__(self) -> str:
        return self.database.label(self.queue, self.name)


def names_of(registered: str) -> tuple[str, ...]:
    """Returns a registered name; of a subconsumer (`a.1`) or slot (`a#3/8`), its consumer's too."""
    mains = (registered.rpartition(sign)[0] for sign in "#.")
    return (registered, *filter(None, mains))


def is_consuming(asset: dg.AssetsDefinition) -> bool:
    """Returns whether `@pgque_asset` made the asset."""
    return any(QUEUE in spec.metadata and CONSUMER in spec.metadata for spec in asset.specs)


def consumers_of(assets: Iterable[dg.AssetsDefinition]) -> list[AssetConsumer]:
    """Returns the consumers of assets in order, with those of shards one after another.

    Raises:
        DagsterInvalidDefinitionError: if an asset consumes no queue, or two share a consumer.
    """
    if isinstance(assets, dg.AssetsDefinition):
        raise dg.DagsterInvalidDefinitionError(
            f"the asset {assets.node_def.name} is given without a list: pass"
            f" [{assets.node_def.name}]"
        )
    consumers = [consumer for asset in assets for consumer in AssetConsumer.all_of(asset)]
    for consumer in consumers:
        refuse_shared(str(consumer), consumers)
    return consumers


def database_of(consumers: Iterable[AssetConsumer]) -> Database:
    """Returns the database of all consumers; the default database if there are none.

    Raises:
        DagsterInvalidDefinitionError: if they have several databases.
    """
    first, *others = {each.database: None for each in consumers} or (DEFAULT_DATABASE,)
    if others:
        raise dg.DagsterInvalidDefinitionError(
            f"these assets consume from the databases {first.name} and "
            f"{', '.join(each.name for each in others)}: build one of each database, or for an "
            "asset with databases=[…] its sensor"
        )
    return first


def refuse_shared(name: str, consumers: Iterable[AssetConsumer]) -> None:
    """Refuses a consumer that several assets have, and names these; `name` is its label."""
    sharing = [consumer for consumer in consumers if str(consumer) == name]
    if len(sharing) > 1:
        assets = " and ".join(
            ", ".join(key.to_user_string() for key in each.asset_keys) for each in sharing
        )
        raise dg.DagsterInvalidDefinitionError(
            f"{assets} share the consumer {name}, so each would get only some of the batches: "
            "give each asset its own consumer"
        )


def consumers_of_location(context: Context) -> list[AssetConsumer]:
    """Returns the consumers of all assets of the code location; none in a test without one."""
    repository = repository_of(context)
    assets = repository.assets_defs_by_key.values() if repository else ()
    # An asset with several keys is listed several times.
    # An asset that another location executes may be declared here, with its metadata.
    consuming = [
        each for each in dict.fromkeys(assets) if is_consuming(each) and each.is_executable
    ]
    return [consumer for each in consuming for consumer in AssetConsumer.all_of(each)]


def repository_of(context: Context) -> dg.RepositoryDefinition | None:
    """Returns the definitions of the code location; None in a test without one."""
    try:
        return context.repository_def
    except Exception:
        # Dagster raises an error of a private module if there is no code location.
        return None

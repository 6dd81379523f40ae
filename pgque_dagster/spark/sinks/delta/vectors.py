"""What a Delta table records of vectors.

Each commit has an application transaction for each member of its vector, whose version is the
vector's id. Properties of the table name the incarnation of each shard.
"""

from deltalake import DeltaTable

from ....client import InvalidArgument
from ....client.vector import Vector
from ..files.vectors import Stored, refused_shards
from ..publication import SHARDS
from ..tables import INCARNATION


def transactions(claim: Vector) -> dict[str, int]:
    """Returns the application transactions of the commit of a vector, and their version."""
    return {_app_id(claim, shard): claim.batch_id for shard in claim.members}


def shard_properties(claim: Vector) -> dict[str, str]:
    """Returns the properties of a table that say whose batches it has."""
    of_shards = {f"{INCARNATION}.{shard}": own for shard, own in claim.incarnations.items()}
    return {INCARNATION: SHARDS, **of_shards}


def stored_in(table: DeltaTable, name: str, claim: Vector) -> dict[str, Stored]:
    """Returns which vectors have members of a vector, by shard, or why a shard is refused.

    Args:
        table: a version of the table.
        name: its name for errors.
        claim: the vector.

    Raises:
        InvalidArgument: if the table has batches of one database.
    """
    properties = table.metadata().configuration
    if properties.get(INCARNATION) != SHARDS:
        raise InvalidArgument(
            f"{name} was not created for a queue over several databases",
            "Store into another table (for assets, by another base_dir or key), and copy the rows "
            "from there if you need them.",
        )
    known = {shard: properties.get(f"{INCARNATION}.{shard}") for shard in claim.members}
    versions = {shard: table.transaction_version(_app_id(claim, shard)) for shard in claim.members}
    return {
        **{shard: version for shard, version in versions.items() if version is not None},
        **refused_shards(
            name,
            claim,
            {shard: value for shard, value in known.items() if value is not None},
            lambda shard, own: (
                f"DeltaTable('{table.table_uri}').alter.set_table_properties("
                f"{{'{INCARNATION}.{shard}': '{own}'}}, raise_if_not_exists=False)."
            ),
        ),
    }


def _app_id(claim: Vector, shard: str) -> str:
    return f"pgque/{claim.record_of(shard)}"

"""Run tags, metadata keys and names that the Dagster modules share."""

import hashlib
import re
from uuid import uuid4

import dagster as dg

QUEUE = "pgque/queue"
CONSUMER = "pgque/consumer"
# The slot of a partitioned consumer and the number of its slots, such as 3/8.
SLOT = "pgque/slot"
PARTITIONS = "pgque/partitions"
START_AT = "pgque/start_at"
# The databases of a queue that is sharded over several, separated by commas.
SHARDS = "pgque/shards"
BATCH_ID = "pgque/batch_id"
ATTEMPT = "pgque/attempt"
EPOCH = "pgque/epoch"
# The time, by the database's clock.
REQUESTED_AT = "pgque/requested_at"
INCARNATION = "pgque/lineage"
# What a downstream asset requests of an input: `new` batches, or those of its own `run`.
BATCHES = "pgque/batches"
# Whether a warm process executes a run; by default, it does if the run is for a batch.
WARM = "pgque/warm"
WARM_PROCESS = "pgque/warm_process"
# Marks sensors of batches that wait for ticks, and share the time of an evaluation round.
WAITS = "pgque/waits_for_ticks"
# The id of a run whose process is known to be dead. A re-execution has the id of the earlier run.
DIED = "pgque/died"
# The id of a run that claimed its batch and failed with a temporary error, and the error.
PASSES = "pgque/passes"
# Dagster's own key: the table that stores an asset.
TABLE = "dagster/table_name"
# Dagster's own key: the place that stores an asset, if it is not a table with a name.
URI = "dagster/uri"
# Dagster's own key: the rows of the whole table.
ROW_COUNT = "dagster/row_count"
# The rows of a batch, since Dagster shows `dagster/row_count` as the rows of the whole table.
ROWS = "pgque/rows"


def switching_on(default_status: dg.DefaultSensorStatus) -> str:
    """Returns how to turn on a sensor that is off at first; empty for one that is on."""
    if default_status is dg.DefaultSensorStatus.RUNNING:
        return ""
    return (
        " It is STOPPED until you turn it on: with Running on this page, with `dagster sensor "
        "start`, or with default_status=RUNNING in the code."
    )


def of_shard(key: str, shard: str | None) -> str:
    """Returns the key of a tag about the batch of one shard."""
    return key if shard is None else f"{key}.{shard}"


_OWNER = re.compile(r"(?:step \w+( over shards)? of )?dagster run (\S+)")


def owner_of_step(run_id: str, *, over_shards: bool = False) -> str:
    """Returns the name under which an execution of a run's step claims batches.

    Each execution has its own: Dagster may start a step of a run again, because of a RetryPolicy or
    because it lost sight of the step's pod, while the first process is still working.

    Args:
        run_id: the run's id.
        over_shards: whether it claims a batch of each of several databases.
    """
    kind = " over shards" if over_shards else ""
    return f"step {uuid4().hex[:8]}{kind} of dagster run {run_id}"


def run_of_owner(owner: str | None, *, over_shards: bool = True) -> str | None:
    """Returns the id of the run that has a lease, or None.

    Args:
        owner: the owner of the lease.
        over_shards: whether a run over several databases counts.
    """
    found = _OWNER.fullmatch(owner or "")
    return found[2] if found and (over_shards or not found[1]) else None


def identifier(name: str) -> str:
    """Returns a name that Dagster accepts. A changed name gets a hash, so that it stays unique."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if plain == name:
        return name
    return f"{plain[:40]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"

"""Asset keys, run tags and metadata keys that the Dagster modules share."""

import dagster as dg

QUEUE = "pgque/queue"
CONSUMER = "pgque/consumer"
SUBCONSUMER = "pgque/subconsumer"
# The slot of a partitioned consumer and the number of its slots, such as 3/8.
SLOT = "pgque/slot"
PARTITIONS = "pgque/partitions"
START_AT = "pgque/start_at"
BATCH_ID = "pgque/batch_id"
ATTEMPT = "pgque/attempt"
EPOCH = "pgque/epoch"
# By the database's clock.
REQUESTED_AT = "pgque/requested_at"
INCARNATION = "pgque/lineage"
# What a downstream asset wants of an input: the batches of the upstream run.
BATCHES = "pgque/batches"
# Whether a run shall be executed by a warm process; by default, if it is one of a batch.
WARM = "pgque/warm"
WARM_PROCESS = "pgque/warm_process"
# Dagster's own key: the table that stores an asset.
TABLE = "dagster/table_name"
# The rows of a batch, since Dagster shows `dagster/row_count` as the rows of the whole table.
ROWS = "pgque/rows"


def queue_key(queue: str) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue."""
    # The suffix tells the queue from its table: Dagster's graph shows only the key's last part, cut
    # to 18 characters.
    return dg.AssetKey(["pgque", f"{queue}_queue"])


def dead_letters_key(queue: str) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue's dead letters."""
    return dg.AssetKey(["pgque", f"{queue}_dlq"])

"""Names that the modules for Dagster share: asset keys, run tags and metadata keys."""

import dagster as dg

QUEUE = "pgque/queue"
CONSUMER = "pgque/consumer"
SUBCONSUMER = "pgque/subconsumer"
BATCH_ID = "pgque/batch_id"
ATTEMPT = "pgque/attempt"
EPOCH = "pgque/epoch"
LINEAGE = "pgque/lineage"
WORKER = "pgque/worker"
REPLAY = "pgque/replay"
# Dagster's own: the table that an asset is kept in.
TABLE = "dagster/table_name"
# Of a batch. `dagster/row_count` is shown as the whole table's.
ROWS = "pgque/rows"


def queue_key(queue: str) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue."""
    # Dagster's graph shows the last part only, and 18 signs of it: it has to tell queue from table.
    return dg.AssetKey(["pgque", f"{queue}_queue"])


def dead_letters_key(queue: str) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue's dead letters."""
    return dg.AssetKey(["pgque", f"{queue}_dlq"])

"""Names of run tags and metadata keys that the modules for Dagster share."""

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

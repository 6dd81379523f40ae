"""Names of run tags and metadata keys that the modules for Dagster share."""

QUEUE = "pgque/queue"
CONSUMER = "pgque/consumer"
SUBCONSUMER = "pgque/subconsumer"
BATCH_ID = "pgque/batch_id"
ATTEMPT = "pgque/attempt"
WORKER = "pgque/worker"
REPLAY = "pgque/replay"

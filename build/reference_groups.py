"""The chapters of docs/reference.md: their titles, introductions and files of sql/."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """A chapter.

    Attributes:
        title: its heading.
        text: its introduction.
        files: the files of its functions, in any order; the functions follow the manifest's order.
    """

    title: str
    text: str
    files: tuple[str, ...]


# Functions that no role may call, only the owner of the schema.
OWNERS_FUNCTIONS = ("uninstall",)

TRIGGER_GROUP = Group(
    "Triggers",
    "Trigger functions that publish the changes of a table. Arguments and formats are in"
    " [triggers.md](triggers.md).",
    (
        "engine/triggers/trigger_arguments.sql",
        "engine/triggers/row_formats.sql",
        "engine/triggers/row_triggers.sql",
        "engine/triggers/capture_change.sql",
        "engine/triggers/capture.sql",
        "engine/triggers/relay.sql",
        "engine/triggers/captured_tables.sql",
        "engine/triggers/replica.sql",
    ),
)

GROUPS = (
    Group(
        "Publishing",
        "These functions send events. The [triggers](#triggers) and a COPY into the table that"
        " `current_event_table` names send events as well.",
        (
            "engine/events/insert_event.sql",
            "api/send.sql",
            "api/send_at.sql",
            "api/send_idem.sql",
            "api/staging.sql",
        ),
    ),
    Group(
        "Consuming",
        "A consumer receives batches: all events between two ticks. A batch stays the same until it"
        " is finished.",
        (
            "api/receive.sql",
            "engine/positions/register_consumer.sql",
            "engine/positions/seek.sql",
            "engine/ticks/window_ticks.sql",
            "engine/batches/next_batch.sql",
            "engine/batches/batch_events.sql",
            "engine/batches/cursor.sql",
            "engine/positions/consumer_states.sql",
            "engine/batches/finish_batch.sql",
            "engine/retries/retry.sql",
            "engine/retries/retry_raw.sql",
        ),
    ),
    Group(
        "Leases and parallel reading",
        "For workers that may die: a claim has an owner, expires, and is fenced by its epoch.",
        (
            "engine/batches/lease.sql",
            "engine/batches/hold_batch.sql",
            "engine/positions/deployment.sql",
            "engine/batches/claim_ticks.sql",
            "engine/batches/read_plan.sql",
            "engine/batches/range_plan.sql",
        ),
    ),
    Group(
        "Cooperative consumers",
        "Several workers, called subconsumers, share the batches of one consumer.",
        ("engine/positions/subconsumer.sql", "engine/batches/coop.sql", "api/receive_coop.sql"),
    ),
    Group(
        "Partitions",
        "Events of one key are delivered in order, to one worker at a time, and keys in parallel.",
        (
            "api/partition_slots.sql",
            "api/partition_receive.sql",
            "api/repartition.sql",
        ),
    ),
    Group(
        "Dead letters",
        "Events that a consumer dead-lettered, or whose retries are used up, with the reason.",
        (
            "api/dead_letter.sql",
            "engine/batches/set_aside.sql",
            "api/dlq_replay.sql",
            "api/dlq_export.sql",
        ),
    ),
    TRIGGER_GROUP,
    Group(
        "Queues",
        "Create, configure and drop queues.",
        (
            "engine/queues/create_queue.sql",
            "engine/queues/config.sql",
            "engine/queues/queue_options.sql",
            "engine/queues/storage.sql",
            "engine/queues/event_tables.sql",
        ),
    ),
    Group(
        "Ticks and maintenance",
        "A scheduler calls these functions: pg_cron, by [`start()`](#start), or any other.",
        (
            "engine/ticks/ticker.sql",
            "engine/ticks/ticker_loop.sql",
            "engine/ticks/external_tick.sql",
            "engine/addon.sql",
            "engine/rotation/maint.sql",
            "engine/rotation/maint_loop.sql",
            "engine/rotation/rotation.sql",
            "engine/rotation/compaction.sql",
            "engine/rotation/log_halves.sql",
            "engine/positions/counters.sql",
            "engine/rotation/history.sql",
            "engine/periods.sql",
        ),
    ),
    Group(
        "Lifecycle",
        "Schedule, stop, check and uninstall pgque, and continue after a failover or a restore: see"
        " [restore.md](restore.md).",
        (
            "ops/version.sql",
            "ops/pg_cron.sql",
            "ops/lifecycle.sql",
            "ops/status.sql",
            "ops/uninstall.sql",
            "ops/upgrade.sql",
            "engine/restore/incarnation.sql",
            "engine/restore/restore.sql",
        ),
    ),
    Group(
        "Observability",
        "Statistics, health and metrics, for people, checks and collectors of metrics.",
        (
            "engine/queues/info.sql",
            "ops/stats.sql",
            "ops/replicas.sql",
            "ops/throughput.sql",
            "ops/metrics.sql",
            "ops/health.sql",
            "ops/database_health.sql",
        ),
    ),
    Group(
        "Names kept from PgQ",
        "Further functions that tools and scripts for PgQ call.",
        ("engine/compat.sql", "engine/events/sequences.sql"),
    ),
)

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
        "engine/trigger_arguments.sql",
        "engine/trigger_checks.sql",
        "engine/trigger_row.sql",
        "engine/trigger_event.sql",
        "engine/jsontriga.sql",
        "engine/logutriga.sql",
        "engine/sqltriga.sql",
        "engine/capture.sql",
        "engine/replica.sql",
    ),
)

GROUPS = (
    Group(
        "Publishing",
        "These functions send events. The [triggers](#triggers) and a COPY into the table that"
        " `current_event_table` names send events as well.",
        (
            "engine/insert_event.sql",
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
            "engine/register_consumer.sql",
            "engine/seek.sql",
            "engine/window_ticks.sql",
            "engine/next_batch.sql",
            "engine/batch_events.sql",
            "engine/cursor.sql",
            "engine/consumer_states.sql",
            "engine/finish_batch.sql",
            "engine/retry.sql",
            "engine/retry_raw.sql",
        ),
    ),
    Group(
        "Leases and parallel reading",
        "For workers that may die: a claim has an owner, expires, and is fenced by its epoch.",
        (
            "engine/lease.sql",
            "engine/hold_batch.sql",
            "engine/deployment.sql",
            "engine/claim_ticks.sql",
            "engine/read_plan.sql",
            "engine/range_plan.sql",
        ),
    ),
    Group(
        "Cooperative consumers",
        "Several workers, called subconsumers, share the batches of one consumer.",
        ("engine/subconsumer.sql", "engine/coop.sql", "api/receive_coop.sql"),
    ),
    Group(
        "Partitions",
        "Events of one key are delivered in order, to one worker at a time, and keys in parallel.",
        (
            "api/partition_slots.sql",
            "api/partition_receive.sql",
            "api/partition_batch.sql",
            "api/partition_nack.sql",
            "api/repartition.sql",
        ),
    ),
    Group(
        "Dead letters",
        "Events that a consumer dead-lettered, or whose retries are used up, with the reason.",
        (
            "api/dead_letter.sql",
            "engine/set_aside.sql",
            "api/dlq_replay.sql",
            "api/dlq_export.sql",
        ),
    ),
    TRIGGER_GROUP,
    Group(
        "Queues",
        "Create, configure and drop queues.",
        (
            "engine/create_queue.sql",
            "engine/config.sql",
            "engine/queue_options.sql",
            "engine/storage.sql",
            "engine/event_tables.sql",
        ),
    ),
    Group(
        "Ticks and maintenance",
        "A scheduler calls these functions: pg_cron, by [`start()`](#start), or any other.",
        (
            "engine/ticker.sql",
            "engine/ticker_loop.sql",
            "engine/external_tick.sql",
            "engine/addon.sql",
            "engine/maint.sql",
            "engine/maint_loop.sql",
            "engine/rotation.sql",
            "engine/compaction.sql",
            "engine/log_halves.sql",
            "engine/counters.sql",
            "engine/history.sql",
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
            "engine/lineage.sql",
            "engine/restore.sql",
        ),
    ),
    Group(
        "Observability",
        "Statistics, health and metrics, for people, checks and collectors of metrics.",
        (
            "engine/info.sql",
            "ops/stats.sql",
            "ops/throughput.sql",
            "ops/latency.sql",
            "ops/metrics.sql",
            "ops/health.sql",
            "ops/database_health.sql",
        ),
    ),
    Group(
        "Test helpers",
        "For tests of applications. A failed test raises PostgreSQL's `assert_failure` (P0004).",
        ("ops/test_helpers.sql",),
    ),
    Group(
        "Names kept from PgQ",
        "Further functions that tools and scripts for PgQ call.",
        ("engine/compat.sql", "engine/sequences.sql"),
    ),
)

"""What an observation of a queue, or of its dead letters, records for its page in the UI.

Dagster plots numbers, so only values that someone on call wants to see over time are numbers.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, timedelta

import dagster as dg

from ..client import Client, ConsumerInfo, DeadLetterCount, HealthCheck, Limits, QueueStats
from ..client.holder import ConsumerState, consumer_states
from .consumers import AssetConsumer, names_of
from .database import DEFAULT_DATABASE, Database
from .keys import QUEUE

REPLAY_JOB = "pgque_replay_dead_letters"
PURGE_JOB = "pgque_purge_dead_letters"

CHECK_TICKS = (
    "check that `pgque ticker`, the ticker sensor or pg_cron runs, and that the queue is not paused"
)
"""What to do about events that wait long for a tick."""

_CELL = 600

Metadata = dict[str, dg.MetadataValue | str | int | float]


def consumer_lag(info: ConsumerInfo) -> timedelta:
    """Returns how far a consumer is behind; 0 if no event waits for it."""
    return info.lag or timedelta(0)


def waiting_for_tick(info: ConsumerInfo) -> str:
    """Returns how many events wait for a tick, and for how long the first has."""
    age = info.unticked_age or timedelta(0)
    return (
        f"up to {info.unticked_events} events wait for a tick, the first for "
        f"{max(0, int(age.total_seconds()))} s"
    )


def name_batch(state: ConsumerState) -> str:
    """Returns the open batch's name in messages: `batch 812 of orders/revenue`."""
    kind = "slot" if state.slot else "subconsumer"
    suffix = "" if state.member is None else f", {kind} {state.member}"
    return f"batch {state.batch_id} of {state.queue}/{state.consumer}{suffix}"


def why_held(state: ConsumerState) -> str | None:
    """Returns since which attempt the open batch is held, and what to do; None if it is not."""
    return state.held_reason and f"{name_batch(state)} is held {state.held_reason}"


def report_queues(
    client: Client,
    queues: Iterable[str],
    consumers: Sequence[AssetConsumer] = (),
    database: Database = DEFAULT_DATABASE,
) -> dict[dg.AssetKey, Metadata]:
    """Returns the metadata of the queues that exist, and of their dead letters, by asset."""
    wanted = set(queues)
    consumers = [each for each in consumers if each.database == database]
    infos = [info for info in client.consumers() if info.queue in wanted]
    names = [(info.queue, info.name) for info in infos]
    states = {
        (state.queue, state.consumer): state
        for state in client.run(consumer_states(names, Limits()))
        if state.member is None
    }
    health = client.health()
    reports: dict[dg.AssetKey, Metadata] = {}
    for stats in client.queue_stats():
        queue = stats.queue
        if queue not in wanted:
            continue
        of_queue = [info for info in infos if info.queue == queue]
        problems = [row for row in health if row.queue in (None, queue) and row.status != "ok"]
        counts = client.dead_letter_counts(queue) if stats.dead_letters else []
        report = _queue_report(stats, of_queue, states, problems, consumers, database)
        reports[database.queue_key(queue)] = report
        reports[database.dead_letters_key(queue)] = {
            **database.tags,
            QUEUE: queue,
            "pgque/dead_letters": sum(each.count for each in counts),
            "pgque/by_consumer_and_reason": dead_letter_table(counts),
        }
    return reports


def _queue_report(
    stats: QueueStats,
    infos: Sequence[ConsumerInfo],
    states: Mapping[tuple[str, str], ConsumerState],
    problems: Sequence[HealthCheck],
    consumers: Sequence[AssetConsumer],
    database: Database,
) -> Metadata:
    slowest = max(map(consumer_lag, infos), default=timedelta(0))
    held = [
        info.name
        for info in infos
        if (state := states.get((info.queue, info.name))) and state.held_reason is not None
    ]
    return {
        **database.tags,
        QUEUE: stats.queue,
        "pgque/consumers": _consumer_table(infos, states, consumers),
        "pgque/what_is_wrong": dg.MetadataValue.md(_problem_list(stats, problems, database)),
        "pgque/depth": stats.depth,
        "pgque/events_per_second": stats.events_per_second,
        "pgque/slowest_consumer_lag_seconds": slowest.total_seconds(),
        "pgque/dead_letters": stats.dead_letters,
        **{
            f"pgque/materialize/{key.to_user_string()}": dg.MetadataValue.asset(key)
            for consumer in held
            for key in assets_of(consumers, stats.queue, consumer)
        },
    }


def dead_letter_table(counts: Sequence[DeadLetterCount]) -> dg.MetadataValue:
    """Returns the numbers of dead letters by consumer and reason."""
    rows = [
        (each.consumer, each.reason or "", each.count, f"{each.oldest.astimezone(UTC):%F %T} UTC")
        for each in counts
    ]
    return markdown_table(("consumer", "reason", "dead letters", "oldest"), rows)


def assets_of(
    consumers: Sequence[AssetConsumer], queue: str, consumer: str
) -> Sequence[dg.AssetKey]:
    """Returns the assets of a consumer; it may be named by a subconsumer or slot of it."""
    found = {each.name: each.asset_keys for each in consumers if each.queue == queue}
    return next((found[name] for name in names_of(consumer) if name in found), ())


def _consumer_table(
    infos: Sequence[ConsumerInfo],
    states: Mapping[tuple[str, str], ConsumerState],
    consumers: Sequence[AssetConsumer],
) -> dg.MetadataValue:
    rows = []
    for info in sorted(infos, key=consumer_lag, reverse=True):
        keys = assets_of(consumers, info.queue, info.name)
        rows.append(
            (
                info.name,
                short(consumer_lag(info)),
                info.waiting_events or 0,
                _doing(states.get((info.queue, info.name))),
                f"{short(info.last_seen)} ago",
                ", ".join(key.to_user_string() for key in keys),
            )
        )
    # The page cuts off the columns on the right.
    return markdown_table(("consumer", "behind", "events", "batch", "active", "asset"), rows)


def _doing(state: ConsumerState | None) -> str:
    if state is None or state.batch_id is None:
        return "none"
    if state.held_reason is not None:
        return f"{state.batch_id}, HELD"
    return f"{state.batch_id}, {'in a run' if state.is_live else 'waits for a run'}"


def _problem_list(stats: QueueStats, problems: Sequence[HealthCheck], database: Database) -> str:
    order = ("critical", "warning")
    found: list[tuple[str, str]] = [
        (f"{row.status}: {row.check}", row.detail)
        for row in sorted(problems, key=lambda row: order.index(row.status))
    ]
    if stats.ticker_paused:
        found.insert(0, ("paused", f"resume the queue: {database.command} resume {stats.queue}"))
    if stats.dead_letters:
        dead_letters = f"{database.command} dead-letters"
        found.append(
            (
                f"{stats.dead_letters} dead letters",
                f"correct the cause, then run {dead_letters} replay {stats.queue}; or delete them "
                f"with {dead_letters} purge {stats.queue}",
            )
        )
    return "\n".join(f"- **{_cell(name)}**: {_cell(text)}" for name, text in found) or "nothing"


def markdown_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> dg.MarkdownMetadataValue:
    """Returns a table; `none` without rows. Characters that end a cell or a line are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    table = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
    return dg.MetadataValue.md(table if rows else "none")


def _cell(value: object) -> str:
    text = " ".join(str(value).split())
    text = text if len(text) <= _CELL else f"{text[:_CELL]}…"
    for special in ("\\", "|", "<", "[", "`", "*", "_"):
        text = text.replace(special, f"\\{special}")
    return text


def short(time: timedelta) -> str:
    """Returns a duration as `0 s`, `75 s`, `12 min`, `5 h` or `3 days`."""
    seconds = max(0, int(time.total_seconds()))
    for size, unit in ((172_800, "days"), (7_200, "h"), (120, "min")):
        if seconds >= size:
            return f"{seconds // {'days': 86_400, 'h': 3_600, 'min': 60}[unit]} {unit}"
    return f"{seconds} s"

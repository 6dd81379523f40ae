"""`pgque status`: one view of all queues."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest

import click

from ...client import Client, ConsumerInfo, LeaseInfo, PermissionDenied, QueueStats
from ...client.queues import installed_addons, queues_of
from ..app import command
from ..printing import Row, as_table, named, shortened, to_json, wants_json

# For the queue of an add-on, only the first columns are known.
_QUEUE_COLUMNS = (
    *("queue", "kind", "depth", "dead letters", "oldest", "events/s", "consumers"),
    *("last tick", "rotated ago", "ticker"),
)


@command(
    "pgque status",
    "pgque status orders",
    "watch pgque status orders",
    "pgque status --json | jq '.queues[] | select(.depth > 1000)'",
)
@click.argument("queue", required=False)
def status(client: Client, queue: str | None) -> None:
    """Show queues, consumers, dead letters and problems: of QUEUE, or of all queues.

    The depth of a queue is the number of events that its slowest consumer has not finished. An open
    batch is shown with the owner of its lease and the time when the lease ends. Queues of the
    add-ons postgremq and qgres follow. For postgremq, the depth is the number of unfinished
    messages; for qgres, it is unknown (-). Without QUEUE, the components are also shown. `pgque
    health` says what to do about problems.
    """
    found = _sections(client, queue)
    if wants_json():
        click.echo(to_json({name: named(rows) for name, rows in found.items()}))
    else:
        click.echo("\n\n".join(_texts(found)))


def _sections(client: Client, queue: str | None) -> dict[str, Sequence[Row]]:
    stats = [each for each in client.queue_stats() if queue in (None, each.queue)]
    consumers = _consumer_rows(client, queue)
    queues = _queue_rows(stats)
    sections = {"queues": queues, "consumers": consumers}
    if queue is None:
        sections = {"components": _component_rows(client)} | sections
        queues += _addon_rows(client)
    if found := client.replicas(queue):
        are_copied = any(each.copying for each in found)
        sections["replicas"] = [
            {
                "queue": each.queue,
                "consumer": each.consumer,
                "table": each.table,
                "target": each.location,
                "state": each.state,
                "last comparison": shortened(each.verdict),
            }
            | ({"copying": shortened(each.copying)} if are_copied else {})
            for each in found
        ]
    letters = _dead_letter_rows(client, stats)
    return sections | {"dead_letters": letters, "problems": _problem_rows(client, queue)}


def _texts(sections: dict[str, Sequence[Row]]) -> Iterator[str]:
    empty = {
        "components": "components are visible only to pgque_admin",
        "queues": "no queues: create one with `pgque create-queue NAME`",
        "consumers": "no consumers: add one with `pgque register QUEUE CONSUMER`",
        "dead_letters": "no dead letters",
        "problems": "no problems",
    }
    return (as_table(rows, empty.get(name, "")) for name, rows in sections.items())


def _queue_rows(stats: Sequence[QueueStats]) -> list[Row]:
    return [
        _queue_row(
            *(queue.queue, "events", queue.depth, queue.dead_letters, queue.oldest_message_age),
            *(queue.events_per_second, queue.consumers, queue.last_tick_time, queue.rotation_age),
            "paused" if queue.ticker_paused else "not paused",
        )
        for queue in stats
    ]


def _addon_rows(client: Client) -> Iterator[Row]:
    """Yields the queues of the add-ons whose roles the user has."""
    for addon in client.run(installed_addons()):
        with suppress(PermissionDenied):
            for queue in client.run(queues_of(addon)):
                yield _queue_row(queue.name, queue.short, queue.depth, queue.dead_letters)


def _queue_row(*figures: object) -> Row:
    return dict(zip_longest(_QUEUE_COLUMNS, figures))


def _consumer_rows(client: Client, queue: str | None) -> Sequence[Row]:
    return [
        {
            "queue": consumer.queue,
            "consumer": consumer.name,
            "pending": consumer.waiting_events,
            "lag": consumer.lag,
            "open batch": consumer.batch_id,
            "owner": lease.owner if lease else None,
            "until": lease.until if lease else None,
            "lease": _lease_state(lease),
            "last active": consumer.last_seen,
        }
        for consumer in client.consumers(queue)
        for lease in (_lease_on(client, consumer),)
    ]


def _lease_on(client: Client, consumer: ConsumerInfo) -> LeaseInfo | None:
    if consumer.batch_id is None:
        return None
    return client.lease_info(consumer.queue, consumer.name)


def _lease_state(lease: LeaseInfo | None) -> str | None:
    if lease is None or lease.owner is None:
        return None
    return "live" if lease.is_live else "ended"


def _component_rows(client: Client) -> Sequence[Row]:
    try:
        return [vars(component) for component in client.status()]
    except PermissionDenied:
        return []


def _dead_letter_rows(client: Client, stats: Sequence[QueueStats]) -> Sequence[Row]:
    return [
        {
            "queue": queue.queue,
            "consumer": letters.consumer,
            "dead letters": letters.count,
            "reason": letters.reason,
            "oldest": letters.oldest,
        }
        for queue in stats
        if queue.dead_letters
        for letters in client.dead_letter_counts(queue.queue)
    ]


def _problem_rows(client: Client, queue: str | None) -> Sequence[Row]:
    return [
        {
            "problem": each.status,
            "queue": each.queue,
            "check": each.check,
            "detail": shortened(each.detail),
        }
        for each in client.health()
        if each.status != "ok" and queue in (None, each.queue)
    ]

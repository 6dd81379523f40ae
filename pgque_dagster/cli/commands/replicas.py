"""Commands for replicas of tables: their state, and what is captured."""

import click

from ...client import Client, ConsumerInfo, InvalidArgument, Limits
from ...client.holder import consumer_states
from ...client.replicas.capture import capture_by_name, captured_tables, uncapture_by_name
from ...client.replicas.status import ReplicaStatus
from ..app import command
from ..errors import NO
from ..printing import Row, shortened, show_result, show_rows


@command(
    "pgque replicas",
    "pgque replicas shop",
    "pgque replicas --json | jq -r '.[] | select(.state == \"different\") | .table'",
)
@click.argument("queue", required=False)
def replicas(client: Client, queue: str | None) -> None:
    """Show the state of the replicas of QUEUE's consumers, or of all queues.

    A replica is `equal` if the last comparison with its table found no difference, and `different`
    until a later comparison finds none. It is `to be copied` if the next batch copies it, `copying`
    while runs copy it in parts, `apart` if its consumer's batches leave it out, and `not verified`
    if it was never compared or the last attempt compared nothing. It `may differ` after a rewrite
    of the table, such as VACUUM FULL, until a comparison finds that it does not. A table that is
    captured but no longer replicated is `taken out`. The number of rows is at the tick in "rows
    at", or current if empty.

    Exits with 3 if a replica is different or apart, or its consumer's batch is held. A replica
    appears with its first batch.
    """
    found = client.replicas(queue)
    pairs = sorted({(each.queue, each.consumer) for each in found})
    held = {
        (state.queue, state.consumer): state.held_reason
        for state in client.run(consumer_states(pairs, Limits()))
        if state.member is None
    }
    infos = {(each.queue, each.name): each for each in client.consumers(queue)}
    rows = []
    for each in found:
        pair = (each.queue, each.consumer)
        rows.append(_row(each, infos.get(pair), held.get(pair)))
    show_rows(rows, "no replicas: `pgque capture TABLE QUEUE` captures a table for replicas")
    wrong = [each for each in found if each.state in {"different", "apart"}]
    if wrong or any(held.values()):
        click.get_current_context().exit(NO)


def _row(status: ReplicaStatus, info: ConsumerInfo | None, held: str | None) -> Row:
    why = status.failure or status.verified_problem or status.copying
    why = why or status.doubt or status.unverified
    return {
        "queue": status.queue,
        "consumer": status.consumer,
        "table": status.table,
        "target": status.location,
        "state": status.state,
        "rows": status.rows,
        "rows at": status.counted_tick,
        "stored at": status.stored_tick,
        "stored ago": status.stored_age,
        "verified at": status.verified_tick,
        "verified ago": status.verified_age,
        "batches since": status.batches,
        "consumer lag": info and info.lag,
        "reason": shortened((held and f"batch held {held}") or why),
    }


@command(
    "pgque capture public.orders shop",
    "pgque capture public.log shop --append",
)
@click.option(
    "--append",
    is_flag=True,
    help="The table has no key, because its rows are only inserted.",
)
def capture(client: Client, table: str, queue: str, append: bool) -> None:
    """Send each change of TABLE to QUEUE from now on, with statement triggers.

    TABLE needs a primary key or a replica identity. Run it as the table's owner. It can be
    repeated: it adds new partitions and repairs triggers. The sensor of a TableReplicaComponent
    captures its tables automatically, if its role owns them. `pgque uncapture` ends it.
    """
    tables = capture_by_name(client, queue, table, append=append)
    show_result(f"captured {table} into queue {queue}", table=table, tables=tables)


@command("pgque uncapture public.orders shop")
def uncapture(client: Client, table: str, queue: str) -> None:
    """End the capture of TABLE into QUEUE. Events already in QUEUE stay.

    Run it as the table's owner. If a TableReplicaComponent lists TABLE, remove it there first;
    otherwise its sensor captures it again.
    """
    if not client.run(uncapture_by_name(queue, table)):
        there = ", ".join(captured_tables(client, queue)) or "none"
        raise InvalidArgument(
            f"table {table} is not captured into queue {queue}", f"Captured are: {there}."
        )
    show_result(f"ended the capture of {table} into queue {queue}", table=table)

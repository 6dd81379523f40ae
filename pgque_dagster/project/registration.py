"""Creates the queues that a `PgqueResource` declares, and assets' consumers, if missing.

Existing objects are only read, so a role without the right to create can start. If something is
missing that the role may not create, the error has the statement for an administrator.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from psycopg import sql

from ..client import Client, InvalidArgument, Limits, PermissionDenied, Position, QueueNotFound
from ..client.holder import consumer_states
from ..client.queues import different_options, log_serial_queue, log_topic, logged_as
from ..client.registrations import subscribe_slots
from ..client.rights import grant
from ..client.ticks import is_new
from .database import Database
from .keys import identifier

# A queue counts as new until it has this age.
_NEW = timedelta(hours=1)
_FIRST_TICK = 1
# By the prefix of a queue's name: the add-on's function with which the queue logs a topic or serial
# queue (Serial Publisher), so that each message sent there is also an event here.
_LOG_FUNCTIONS = {"postgremq": "postgremq.log_topic", "qgres": "qgres.log_queue"}


def addon_of(queue: str) -> str | None:
    """Returns the add-on whose topic or serial queue a queue logs, or None."""
    addon, _, name = queue.partition(".")
    return addon if name and addon in _LOG_FUNCTIONS else None


def how_to_create(queue: str, database: Database) -> str:
    """Returns what to do about a queue that does not exist."""
    create = f"{database.command} create-queue {queue}"
    command = _log_sql(queue) if addon_of(queue) else create
    return (
        f"Name {queue} in `queues` of the PgqueResource, or create it with `{command}`. If it is "
        f"for replicas, {who_creates(queue, database)}."
    )


def who_creates(name: str, database: Database) -> str:
    """Returns which sensor creates the queue of replicas with this name."""
    return f"the sensor {capture_sensor_name(name, database)} creates it once it is on"


def capture_sensor_name(name: str, database: Database) -> str:
    """Returns the name of the sensor that captures the tables of replicas with this name."""
    return database.named(f"{identifier(name)}_capture")


def how_to_register_again(queue: str, consumer: str, database: Database) -> str:
    """Returns how to restart, without a loss, a consumer that was removed, or whose queue was."""
    return (
        f"Register it with `{database.command} register {queue} {consumer} --start-at earliest`, "
        "so that it starts at the first event that the queue has; without --start-at it skips "
        "those that wait."
    )


def _log_sql(queue: str) -> str:
    addon, _, name = queue.partition(".")
    return f"select {_LOG_FUNCTIONS[addon]}({sql.Literal(name).as_string(None)});"


def ensure_queue(client: Client, queue: str, options: Mapping[str, Any]) -> None:
    """Creates a missing queue, or sets the options that differ on an existing one.

    A queue `postgremq.<topic>` or `qgres.<name>` logs a topic or a Serial Publisher, which is
    created, too. Names of serial queues are case-insensitive.

    Raises:
        PermissionDenied: if something must be created or set and the role lacks pgque_admin.
        InvalidArgument: if an option does not exist, or has an invalid value; or if the queue with
            the name of a log was created in another way.
    """
    if addon := addon_of(queue):
        queue = _ensure_log(client, queue, addon)
    try:
        different = client.run(different_options(queue, options))
        if not different:
            return
        options = {name: options[name] for name, _, _ in different}
        values = "; ".join(f"{name} is {has}, not {wants}" for name, has, wants in different)
        what = f'queue "{queue}" differs from queue_options ({values})'
        action, advice = "set them", "Correct queue_options, or let"
    except QueueNotFound:
        what = f'queue "{queue}" does not exist'
        action, advice = "create it", "Let"
    try:
        client.create_queue(queue, **options)
    except PermissionDenied as error:
        command = _create_sql(queue, options)
        raise _denied(client, what, action, advice, command) from error


def _ensure_log(client: Client, queue: str, addon: str) -> str:
    """Creates and logs a topic or a Serial Publisher; returns the name of the queue."""
    name = queue.removeprefix(f"{addon}.")
    logged = logged_as(addon, name)
    if found := client.run(logged):
        return found
    try:
        if addon == "postgremq":
            client.run(log_topic(name))
        else:
            client.run(log_serial_queue(name))
    except PermissionDenied as error:
        what = f'nothing is logged in queue "{queue}"'
        raise _denied(client, what, "create the log", "Let", _log_sql(queue)) from error
    return client.run(logged) or queue


def register(
    client: Client,
    queue: str,
    consumer: str,
    start_at: Position | None = None,
    partitions: int | None = None,
) -> str:
    """Registers a consumer. Returns where it starts, such as "the last tick".

    Without `start_at` it starts at the last tick; on a new queue at the first tick, so that
    the consumers of assets also get events that were sent right after the queue was created. With
    `partitions` it gets that number of slots.

    Raises:
        QueueNotFound: if there is no such queue.
        InvalidArgument: if the position is no longer retained.
    """

    def register_at(position: Position | None) -> None:
        if partitions is not None:
            client.run(subscribe_slots(queue, consumer, partitions, position))
        else:
            client.register_consumer(queue, consumer, start_at=position or "latest")

    if start_at is None and client.run(is_new(queue, _NEW)):
        # The first tick may already be gone.
        with suppress(InvalidArgument), client.transaction():
            register_at(_FIRST_TICK)
            return "the first tick"
    register_at(start_at)
    return "the last tick" if start_at is None else f"start_at {start_at}"


def ensure_consumer(
    client: Client,
    queue: str,
    consumer: str,
    start_at: Position | None = None,
    partitions: int | None = None,
) -> None:
    """Registers a consumer as `register` does, if it is missing.

    Raises:
        QueueNotFound: if there is no such queue.
        InvalidArgument: if it is missing and its position is no longer retained; or if it has
            another number of slots.
    """
    (state, *_) = client.run(consumer_states([(queue, consumer)], Limits()))
    if state.role is None or (state.role == "partitioned" and partitions is None):
        # Refuses a consumer with slots, if the asset has none.
        register(client, queue, consumer, start_at, partitions)
    elif partitions is not None:
        # Refuses another number of slots.
        client.run(subscribe_slots(queue, consumer, partitions))


def _denied(client: Client, what: str, action: str, advice: str, command: str) -> PermissionDenied:
    """Returns the error: what is missing, and what helps; `advice` begins the second part."""
    return PermissionDenied(
        f'{what}, and role "{client.user}" may not {action}',
        f"{advice} a role that has pgque_admin run: {command} "
        f"or: {grant('pgque_admin', client.user)}",
    )


def _create_sql(queue: str, options: Mapping[str, Any]) -> str:
    given = [queue, json.dumps(options)] if options else [queue]
    literals = ", ".join(sql.Literal(text).as_string(None) for text in given)
    return f"select pgque.create_queue({literals});"

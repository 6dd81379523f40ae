"""Makes what a `PgqueResource` declares where it is missing.

What is there already is only looked at, so a role that may make nothing can start with it. What it
would have to make is an error that says what somebody else runs.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from psycopg import sql

from .client import (
    Client,
    ConsumerNotFound,
    InvalidArgument,
    PermissionDenied,
    QueueNotFound,
    calls,
)
from .client.calls.ticks import is_new, register_at
from .client.rights import grant

_NEW = timedelta(hours=1)
_FIRST_TICK = 1


def ensure_queue(client: Client, queue: str, options: Mapping[str, Any]) -> None:
    """Creates a queue that is missing, and sets those of the options that it does not have.

    Raises:
        PermissionDenied: if something is to be done, and the role lacks pgque_admin.
        InvalidArgument: if there is no such option, or it has no such value.
    """
    try:
        different = client.run(calls.queues.different_options(queue, options))
        if not different:
            return
        options = {name: options[name] for name, _, _ in different}
        values = "; ".join(f"{name} is {has}, not {wants}" for name, has, wants in different)
        what = f'queue "{queue}" differs from queue_options ({values})'
        doing, way_out = "set that", "Correct queue_options, or let"
    except QueueNotFound:
        what = f'queue "{queue}" does not exist'
        doing, way_out = "create it", "Let"
    try:
        client.create_queue(queue, **options)
    except PermissionDenied as error:
        command = _create_sql(queue, options)
        raise _denied(client, what, doing, way_out, command) from error


def register(client: Client, queue: str, consumer: str) -> str:
    """Registers a consumer, and says where it begins.

    That is the last tick; or the first, where the queue is new: whoever sends as soon as the queue
    is there expects the consumers that are declared with it to get the event.

    Raises:
        QueueNotFound: if there is no such queue.
    """
    with client.transaction():
        # In one transaction: a consumer that was registered before stays where it is.
        if client.register_consumer(queue, consumer) and client.run(is_new(queue, _NEW)):
            with suppress(InvalidArgument), client.transaction():
                client.run(register_at(queue, consumer, _FIRST_TICK))
                return "the first tick"
    return "the last tick"


def ensure_consumer(client: Client, queue: str, consumer: str) -> None:
    """Registers a consumer as `register` does, if it is not registered.

    Raises:
        QueueNotFound: if there is no such queue.
    """
    try:
        client.lease_info(queue, consumer)
    except ConsumerNotFound:
        register(client, queue, consumer)


def ensure_scheduled(client: Client) -> None:
    """Has pg_cron tick; a role that may not make its jobs needs them to be there.

    Raises:
        PermissionDenied: if there are none, and the role lacks pgque_admin.
        SchedulerMissing: if there is no pg_cron.
    """
    try:
        client.start()
    except PermissionDenied as error:
        if client.run(calls.maintenance.scheduler()) is None:
            raise _denied(
                client,
                "pg_cron has no jobs that tick the queues",
                "make them",
                "Let",
                "select pgque.start();",
            ) from error


def _denied(client: Client, what: str, doing: str, way_out: str, command: str) -> PermissionDenied:
    """Says what is missing, and what somebody else runs or grants."""
    return PermissionDenied(
        f'{what}, and role "{client.user}" may not {doing}',
        f"{way_out} a role that has pgque_admin run: {command} "
        f"or: {grant('pgque_admin', client.user)}",
    )


def _create_sql(queue: str, options: Mapping[str, Any]) -> str:
    given = [queue, json.dumps(options)] if options else [queue]
    literals = ", ".join(sql.Literal(text).as_string(None) for text in given)
    return f"select pgque.create_queue({literals});"

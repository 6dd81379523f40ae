"""Creates the queues and jobs that a `PgqueResource` declares, and assets' consumers, if missing.

What exists is only read, so a role without the right to create can start. If something is missing
that the role may not create, the error has the statement that somebody else runs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from psycopg import sql

from ..client import (
    Client,
    ConsumerNotFound,
    InvalidArgument,
    Limits,
    PermissionDenied,
    Position,
    QueueNotFound,
    WrongConsumerRole,
)
from ..client.holder import ConsumerState, consumer_states
from ..client.installation import scheduler
from ..client.partitions import subscribe_slots
from ..client.queues import different_options, log_serial_queue, log_topic, logged_as
from ..client.rights import grant
from ..client.ticks import is_new, register_at

_NEW = timedelta(hours=1)
_FIRST_TICK = 1


_OPTIONS = {"postgremq": "topics", "qgres": "serial_queues"}
_FUNCTIONS = {"postgremq": "postgremq.log_topic", "qgres": "qgres.log_queue"}


def declaring_option(queue: str) -> tuple[str, str]:
    """Returns the option of the PgqueResource that declares a queue, and the name it takes.

    A queue with the name of an add-on gets messages or entries only if the add-on made it.
    """
    addon, _, name = queue.partition(".")
    return (_OPTIONS[addon], name) if name and addon in _OPTIONS else ("queues", queue)


def how_to_create(queue: str) -> str:
    """Returns what to do about a queue that does not exist."""
    option, name = declaring_option(queue)
    command = f"`pgque create-queue {queue}`" if option == "queues" else f"`{_log_sql(queue)}`"
    return f"Name {name} in `{option}` of the PgqueResource, or create it with {command}."


def how_to_register_again(queue: str, consumer: str) -> str:
    """Returns how a consumer that was removed, or whose queue was, starts again without a loss."""
    return (
        f"Register it with `pgque register {queue} {consumer} --start-at earliest`, so that it "
        "starts at the first event that the queue has; without --start-at it skips those that wait."
    )


def _log_sql(queue: str) -> str:
    addon, _, name = queue.partition(".")
    return f"select {_FUNCTIONS[addon]}({sql.Literal(name).as_string(None)});"


def ensure_queue(client: Client, queue: str, options: Mapping[str, Any]) -> None:
    """Creates a missing queue, or sets the options that differ on an existing one.

    Raises:
        PermissionDenied: if something must be created or set and the role lacks pgque_admin.
        InvalidArgument: if an option does not exist, or has an invalid value.
        QueueNotFound: if it is missing, and logs a topic or a serial queue.
    """
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
        if declaring_option(queue)[0] != "queues":
            raise QueueNotFound(what, how_to_create(queue)) from None
    try:
        client.create_queue(queue, **options)
    except PermissionDenied as error:
        command = _create_sql(queue, options)
        raise _denied(client, what, action, advice, command) from error


def ensure_topic(client: Client, topic: str) -> None:
    """Creates a topic of postgremq and the queue that logs it, unless it is logged.

    Raises:
        PermissionDenied: if it is not logged and the role lacks pgque_admin.
        InvalidArgument: if somebody else created a queue of that name.
    """
    if client.run(logged_as("postgremq", topic)) is None:
        _log(client, f"postgremq.{topic}", lambda: client.run(log_topic(topic)))


def ensure_serial_queue(client: Client, name: str) -> None:
    """Creates a Serial Publisher of qgres and the queue that logs it, unless it is logged.

    Names of serial queues are case-insensitive.

    Raises:
        PermissionDenied: if it is not logged and the role lacks pgque_admin.
        InvalidArgument: if somebody else created a queue of that name.
    """
    if client.run(logged_as("qgres", name)) is None:
        _log(client, f"qgres.{name}", lambda: client.run(log_serial_queue(name)))


def _log(client: Client, queue: str, create: Callable[[], object]) -> None:
    try:
        create()
    except PermissionDenied as error:
        what = f'nothing is logged in queue "{queue}"'
        raise _denied(client, what, "create the log", "Let", _log_sql(queue)) from error


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
    if partitions is not None:
        return _register_slots(client, queue, consumer, start_at, partitions)
    if start_at is not None:
        client.register_consumer(queue, consumer, start_at=start_at)
        return f"start_at {start_at}"
    with client.transaction():
        # One transaction, because a consumer that already exists is not moved to the first tick.
        if client.register_consumer(queue, consumer) and client.run(is_new(queue, _NEW)):
            with suppress(InvalidArgument), client.transaction():
                client.run(register_at(queue, consumer, _FIRST_TICK))
                return "the first tick"
    return "the last tick"


def _register_slots(
    client: Client, queue: str, consumer: str, start_at: Position | None, partitions: int
) -> str:
    if start_at is None and client.run(is_new(queue, _NEW)):
        with suppress(InvalidArgument), client.transaction():
            client.run(subscribe_slots(queue, consumer, partitions, _FIRST_TICK))
            return "the first tick"
    client.run(subscribe_slots(queue, consumer, partitions, start_at))
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
    if partitions is not None:
        (state, *_) = client.run(consumer_states([(queue, consumer)], Limits()))
        if state.role == "partitioned":
            # Checks the number.
            client.run(subscribe_slots(queue, consumer, partitions))
        else:
            register(client, queue, consumer, start_at, partitions)
        return
    try:
        client.lease_info(queue, consumer)
    except ConsumerNotFound:
        register(client, queue, consumer, start_at)


def refuse_subconsumers(states: Sequence[ConsumerState]) -> None:
    """Refuses a consumer that subconsumers share, as earlier versions made them.

    Args:
        states: of the consumer, then of its parts.

    Raises:
        WrongConsumerRole: saying how the consumer becomes one that an asset can have.
    """
    main, *members = states
    if main.role != "coop_main":
        return
    calls = (
        sql.SQL("select pgque.unregister_subconsumer({}, {}, {});")
        .format(main.queue, main.consumer, str(member.part))
        .as_string(None)
        for member in members
    )
    raise WrongConsumerRole(
        f'consumer "{main.consumer}" on queue "{main.queue}" is shared by subconsumers, and an '
        "asset takes one batch at a time",
        "Let them finish their batches, for example by executing their runs again, and then run: "
        + " ".join(calls),
    )


def ensure_scheduled(client: Client) -> None:
    """Creates the pg_cron jobs. For a role that may not, only checks that they exist.

    Raises:
        PermissionDenied: if there are none and the role lacks pgque_admin.
        SchedulerMissing: if the database has no pg_cron.
    """
    try:
        client.start()
    except PermissionDenied as error:
        if client.run(scheduler()) is None:
            raise _denied(
                client,
                "pg_cron has no jobs that tick the queues",
                "create them",
                "Let",
                "select pgque.start();",
            ) from error


def _denied(client: Client, what: str, action: str, advice: str, command: str) -> PermissionDenied:
    """Builds the error that names what is missing and the statement or grant that helps."""
    return PermissionDenied(
        f'{what}, and role "{client.user}" may not {action}',
        f"{advice} a role that has pgque_admin run: {command} "
        f"or: {grant('pgque_admin', client.user)}",
    )


def _create_sql(queue: str, options: Mapping[str, Any]) -> str:
    given = [queue, json.dumps(options)] if options else [queue]
    literals = ", ".join(sql.Literal(text).as_string(None) for text in given)
    return f"select pgque.create_queue({literals});"

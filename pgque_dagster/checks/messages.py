"""Queues of the add-on postgremq in the lineage, with checks on their dead letters and backlog."""

from collections.abc import Sequence

import dagster as dg

from ..client import InvalidArgument, MessageQueue
from ..client.ranges import count_problem
from ..project.resource import PgqueResource


def message_queue_key(queue: str) -> dg.AssetKey:
    """Returns the key of the external asset that stands for a queue of messages."""
    return dg.AssetKey(["pgque", f"{queue}_messages"])


def build_message_queue_defs(
    queues: Sequence[str],
    *,
    group_name: str = "pgque",
    producers: Sequence[dg.AssetKey | dg.AssetSpec | dg.AssetsDefinition | str] = (),
    max_dead_letters: int = 0,
    max_unfinished: int | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> dg.Definitions:
    """Builds the assets of queues of the add-on postgremq, and a check on each.

    The check `messages` fails if the queue has too many dead letters or unfinished messages.

    Args:
        queues: the queues' names.
        group_name: the group of the assets.
        producers: the assets that publish the messages, shown upstream of the queues.
        max_dead_letters: how many messages of a queue may be in the dead-letter queue.
        max_unfinished: how many messages may wait or be claimed; None for any number.
        severity: of a failure, ERROR or WARN.
        automation_condition: when Dagster evaluates the checks by itself.

    Returns:
        The assets and the checks, to merge with your Definitions. They need the resource `pgque`.

    Raises:
        DagsterInvalidDefinitionError: if a number is negative.
    """
    limits = {"max_dead_letters": max_dead_letters, "max_unfinished": max_unfinished}
    for name, limit in limits.items():
        if limit is not None and (problem := count_problem(name, limit, at_least=0)):
            raise dg.DagsterInvalidDefinitionError(f"a check on messages: {problem}")
    return dg.Definitions(
        assets=[
            dg.AssetSpec(
                message_queue_key(queue),
                deps=list(producers),
                description=f"The queue `{queue}` of messages, in Postgres, of the add-on "
                "postgremq. Its workers ack messages one by one.",
                group_name=group_name,
                kinds={"postgres"},
            )
            for queue in queues
        ],
        asset_checks=[
            _check(queue, max_dead_letters, max_unfinished, severity, automation_condition)
            for queue in queues
        ],
    )


def _check(
    queue: str,
    max_dead_letters: int,
    max_unfinished: int | None,
    severity: dg.AssetCheckSeverity,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None,
) -> dg.AssetChecksDefinition:
    allowed = "any number of" if max_unfinished is None else f"at most {max_unfinished}"

    @dg.asset_check(
        asset=message_queue_key(queue),
        name="messages",
        description=f"At most {max_dead_letters} dead letters and {allowed} unfinished messages in "
        f"queue {queue}.",
        automation_condition=automation_condition,
    )
    def messages(pgque: PgqueResource) -> dg.AssetCheckResult:
        with pgque.client() as client:
            found = _find(client.messages.queues(), queue)
        unfinished = found.pending + found.processing
        problems = []
        if found.dead_letters > max_dead_letters:
            problems.append(f"{found.dead_letters} dead letters, {max_dead_letters} allowed")
        if max_unfinished is not None and unfinished > max_unfinished:
            problems.append(f"{unfinished} unfinished messages, {max_unfinished} allowed")
        return dg.AssetCheckResult(
            passed=not problems,
            severity=severity,
            description="; ".join(problems) or None,
            metadata={
                "dead_letters": found.dead_letters,
                "pending": found.pending,
                "processing": found.processing,
                "what_to_do": dg.MetadataValue.md(
                    f"`select postgremq.requeue_dlq_messages('{queue}')` delivers the dead letters "
                    "again; `select * from postgremq.list_dlq_messages()` shows them."
                ),
            },
        )

    return messages


def _find(queues: Sequence[MessageQueue], name: str) -> MessageQueue:
    for queue in queues:
        if queue.name == name:
            return queue
    raise InvalidArgument(
        f'there is no queue "{name}" of messages',
        f"Create it: select postgremq.create_queue('{name}', '<topic>');",
    )

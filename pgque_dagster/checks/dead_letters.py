"""Checks on dead letters: their number, in all and by reason, and how fast it grows."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from ..client import DeadLetter, DeadLetterCount
from ..project.keys import dead_letters_key
from ..project.resource import PgqueResource
from .tables import shortened, table

ShowPayloads = bool | Callable[[DeadLetter], str | None]

_HIDDEN = "(hidden)"
_SHOWN = 5
_COUNTER = "pgque.message.dead_lettered_total"
# How many evaluations are read at a time, in the search for the last one with a result.
_PAGE = 100


@dataclass(frozen=True)
class _Limits:
    """How many dead letters a queue may have. Each dead letter counts towards one limit.

    Attributes:
        others: the limit for dead letters whose reason matches no pattern.
        by_reason: limits by LIKE pattern; the first pattern that matches counts.
    """

    others: int
    by_reason: Mapping[str, int]

    def exceeded(self, counts: Sequence[DeadLetterCount]) -> list[str]:
        """Describes the limits that the dead letters exceed."""
        found: dict[str | None, int] = dict.fromkeys([*self.by_reason, None], 0)
        for count in counts:
            fitting = (each for each in self.by_reason if _is_like(count.reason or "", each))
            found[next(fitting, None)] += count.count
        return [
            f"{number} dead letters{'' if reason is None else f' for {reason!r}'}, "
            f"{self._limit(reason)} allowed"
            for reason, number in found.items()
            if number > self._limit(reason)
        ]

    def _limit(self, reason: str | None) -> int:
        return self.others if reason is None else self.by_reason[reason]


def build_dead_letter_checks(
    queues: Sequence[str],
    *,
    max_dead_letters: int = 0,
    max_by_reason: Mapping[str, int] | None = None,
    max_growth: int | None = None,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    show_payloads: ShowPayloads = True,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Builds the checks on the assets of queues' dead letters.

    `dead_letters` checks how many there are. With `max_growth`, `dead_letters_growth` checks how
    many events were given up since its last evaluation, even if they were replayed or purged since.
    Its first evaluation passes only if no event was ever given up.

    Args:
        queues: the queues' names.
        max_dead_letters: how many dead letters a queue may have.
        max_by_reason: separate limits for some reasons, by LIKE pattern (`not JSON%`). Dead letters
            that match a pattern do not count towards `max_dead_letters`.
        max_growth: how many events may be given up between two evaluations.
        severity: of a failure, ERROR or WARN.
        show_payloads: whether to show their payloads, which then stay in Dagster's event log; or a
            function that returns what to show of a dead letter. Reasons are always shown.
        automation_condition: when Dagster evaluates the checks by itself.

    Returns:
        The checks, for the Definitions. They need the resource `pgque`.

    Raises:
        DagsterInvalidDefinitionError: if a number is negative.
    """
    by_reason = dict(max_by_reason or {})
    if min(max_dead_letters, max_growth or 0, *by_reason.values()) < 0:
        raise dg.DagsterInvalidDefinitionError(
            "a limit of a check on dead letters is negative: limits must be 0 or more"
        )
    limits = _Limits(max_dead_letters, by_reason)
    checks = [
        _count_check(queue, limits, severity, show_payloads, automation_condition)
        for queue in queues
    ]
    if max_growth is not None:
        checks += [
            _growth_check(queue, max_growth, severity, automation_condition) for queue in queues
        ]
    return checks


def _count_check(
    queue: str,
    limits: _Limits,
    severity: dg.AssetCheckSeverity,
    show_payloads: ShowPayloads,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None,
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dead_letters_key(queue),
        name="dead_letters",
        description=f"At most {limits.others} dead letters in queue {queue}.",
        automation_condition=automation_condition,
    )
    def dead_letters(pgque: PgqueResource) -> dg.AssetCheckResult:
        with pgque.client() as client:
            counts = client.dead_letter_counts(queue)
            newest = client.dead_letters(queue, _SHOWN) if counts else []
        exceeded = limits.exceeded(counts)
        metadata: dict[str, dg.MetadataValue | int] = {
            "dead_letters": sum(count.count for count in counts),
            "allowed": limits.others,
            "by_consumer_and_reason": _reasons(counts),
        }
        if newest:
            metadata["newest"] = _newest(newest, show_payloads)
        if exceeded:
            metadata["what_to_do"] = dg.MetadataValue.md(what_to_do_about(queue))
        return dg.AssetCheckResult(
            passed=not exceeded,
            severity=severity,
            description="; ".join(exceeded) or None,
            metadata=metadata,
        )

    return dead_letters


def _growth_check(
    queue: str,
    max_growth: int,
    severity: dg.AssetCheckSeverity,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None,
) -> dg.AssetChecksDefinition:
    name = "dead_letters_growth"
    key = dg.AssetCheckKey(dead_letters_key(queue), name)

    @dg.asset_check(
        asset=key.asset_key,
        name=name,
        description=f"At most {max_growth} events of queue {queue} given up since the last "
        "evaluation.",
        automation_condition=automation_condition,
    )
    def dead_letters_growth(
        context: dg.AssetCheckExecutionContext, pgque: PgqueResource
    ) -> dg.AssetCheckResult:
        with pgque.client() as client:
            # Raises QueueNotFound if the queue does not exist; metrics() would be silent.
            client.dead_letter_counts(queue)
            ever = sum(
                int(metric.value)
                for metric in client.metrics()
                if metric.name == _COUNTER and metric.labels["queue"] == queue
            )
        before = _previous(context.instance, key)
        if before is None:
            # Nobody has seen these yet. The next evaluation compares with this number.
            growth, passed = ever, ever == 0
            found = f"first evaluation: {ever} events were given up before it"
        else:
            # The counter is lower only if the queue was dropped and created again.
            growth = ever - before if ever >= before else ever
            passed = growth <= max_growth
            found = f"{growth} events were given up since the last evaluation, {max_growth} allowed"
        return dg.AssetCheckResult(
            passed=passed,
            severity=severity if growth > max_growth else dg.AssetCheckSeverity.WARN,
            description=found,
            metadata={
                "growth": growth,
                "allowed": max_growth,
                _COUNTER: ever,
                **({} if passed else {"what_to_do": dg.MetadataValue.md(what_to_do_about(queue))}),
            },
        )

    return dead_letters_growth


def _previous(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> int | None:
    """Returns the counter at the last evaluation that has a result, however long ago it was.

    Dagster also lists evaluations without a result: the current one, and those that could not reach
    the database.
    """
    cursor = None
    while True:
        page = instance.event_log_storage.get_asset_check_execution_history(key, _PAGE, cursor)
        for record in page:
            evaluation = record.event.asset_check_evaluation if record.event else None
            if evaluation is not None and _COUNTER in evaluation.metadata:
                return int(str(evaluation.metadata[_COUNTER].value))
        if len(page) < _PAGE:
            return None
        cursor = page[-1].id


def _is_like(text: str, pattern: str) -> bool:
    """Whether a text matches a LIKE pattern."""
    wild = {"%": ".*", "_": "."}
    return bool(
        re.fullmatch("".join(wild.get(each, re.escape(each)) for each in pattern), text, re.DOTALL)
    )


def _reasons(counts: Sequence[DeadLetterCount]) -> dg.TableMetadataValue:
    return table(
        {"consumer": "string", "reason": "string", "dead_letters": "int", "oldest": "string"},
        [
            (
                count.consumer,
                shortened(count.reason),
                count.count,
                count.oldest.isoformat(timespec="seconds"),
            )
            for count in counts
        ],
    )


def _newest(letters: Sequence[DeadLetter], show: ShowPayloads) -> dg.TableMetadataValue:
    return table(
        {
            "id": "int",
            "time": "string",
            "type": "string",
            "reason": "string",
            "payload": "string",
        },
        [
            (
                letter.id,
                letter.time.isoformat(timespec="seconds"),
                letter.type or "",
                shortened(letter.reason),
                _payload(letter, show),
            )
            for letter in letters
        ],
    )


def _payload(letter: DeadLetter, show: ShowPayloads) -> str:
    if not callable(show):
        return shortened(letter.payload) if show else _HIDDEN
    try:
        return shortened(show(letter))
    except Exception as error:
        # The payload must stay hidden if the function that redacts it fails.
        return f"{_HIDDEN[:-1]}: show_payloads raised {type(error).__name__})"


def what_to_do_about(queue: str) -> str:
    """Says how to inspect a queue's dead letters, and how to replay or purge them."""
    name = queue.replace("'", "''")
    return (
        f"Inspect them: `select * from pgque.dlq_inspect('{name}')`. After correcting the cause, "
        f"send them again to the consumers that gave them up, with the job "
        f"`pgque_replay_dead_letters` or `select * from pgque.dlq_replay_all('{name}')`. Or delete "
        f"them, with `pgque_purge_dead_letters` or `select pgque.dlq_purge('{name}', '0')`."
    )

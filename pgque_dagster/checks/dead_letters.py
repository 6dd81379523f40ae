"""The check on dead letters: their number, in all and by reason."""

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
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    show_payloads: ShowPayloads = True,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Builds the check `dead_letters` on the assets of queues' dead letters.

    It checks how many there are. `build_pgque_alerts` notifies of each growth.

    Args:
        queues: the queues' names.
        max_dead_letters: how many dead letters a queue may have.
        max_by_reason: separate limits for some reasons, by LIKE pattern (`not JSON%`). Dead letters
            that match a pattern do not count towards `max_dead_letters`.
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
    if min([max_dead_letters, *by_reason.values()]) < 0:
        raise dg.DagsterInvalidDefinitionError(
            "a limit of a check on dead letters is negative: limits must be 0 or more"
        )
    limits = _Limits(max_dead_letters, by_reason)
    return [
        _check(queue, limits, severity, show_payloads, automation_condition) for queue in queues
    ]


def _check(
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

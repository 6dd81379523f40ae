"""Asset checks on what consumers gave up."""

from collections.abc import Sequence

import dagster as dg

from .client import DeadLetterCount
from .lineage import dead_letters_key
from .resources import PgqueResource


def build_dead_letter_checks(
    queues: Sequence[str],
    *,
    max_dead_letters: int = 0,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> list[dg.AssetChecksDefinition]:
    """Makes one check a queue, on the asset of its dead letters.

    Args:
        queues: the queues' names.
        max_dead_letters: how many a queue may have.
        severity: of a failure.

    Returns:
        The checks, for the Definitions. They need the resource `pgque`.
    """
    return [_dead_letter_check(queue, max_dead_letters, severity) for queue in queues]


def _dead_letter_check(
    queue: str, max_dead_letters: int, severity: dg.AssetCheckSeverity
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dead_letters_key(queue),
        name="dead_letters",
        description=f"At most {max_dead_letters} dead letters in queue {queue}.",
    )
    def dead_letters(pgque: PgqueResource) -> dg.AssetCheckResult:
        with pgque.client() as client:
            counts = client.dead_letter_counts(queue)
        total = sum(count.count for count in counts)
        passed = total <= max_dead_letters
        return dg.AssetCheckResult(
            passed=passed,
            severity=severity,
            metadata={
                "dead_letters": total,
                "allowed": max_dead_letters,
                "by_consumer_and_reason": _table(counts),
                **({} if passed else {"what_to_do": dg.MetadataValue.md(_advice(queue))}),
            },
        )

    return dead_letters


def _table(counts: Sequence[DeadLetterCount]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table(
        records=[
            dg.TableRecord(
                {
                    "consumer": count.consumer,
                    "reason": count.reason or "",
                    "dead_letters": count.count,
                    "oldest": count.oldest.isoformat(timespec="seconds"),
                }
            )
            for count in counts
        ],
        schema=dg.TableSchema(
            columns=[
                dg.TableColumn("consumer", "string"),
                dg.TableColumn("reason", "string"),
                dg.TableColumn("dead_letters", "int"),
                dg.TableColumn("oldest", "string"),
            ]
        ),
    )


def _advice(queue: str) -> str:
    name = queue.replace("'", "''")
    return (
        f"Look at them: `select * from pgque.dlq_inspect('{name}')`. Once the cause is mended, "
        f"send them again to the consumers that gave them up: `select * from "
        f"pgque.dlq_replay_all('{name}')`; or delete them: `select pgque.dlq_purge('{name}', '0')`."
    )

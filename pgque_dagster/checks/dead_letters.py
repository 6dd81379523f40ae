"""The check on dead letters: their number, in total and by reason."""

from collections.abc import Sequence

import dagster as dg

from ..client import Client
from ..client.ranges import count_problem
from ..project.database import DEFAULT, Database
from ..project.queue_report import PURGE_JOB, REPLAY_JOB, Metadata, dead_letter_table
from ..project.resource import PgqueResource, takes_resource

CHECK = "dead_letters"


def build_dead_letter_checks(
    queues: Sequence[str],
    *,
    database: str = DEFAULT,
    max_dead_letters: int = 0,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
    automation_condition: dg.AutomationCondition[dg.AssetCheckKey] | None = None,
) -> list[dg.AssetChecksDefinition]:
    """Builds the check `dead_letters` on the assets of queues' dead letters.

    It checks how many there are. `build_pgque_alerts` notifies of each growth.

    Args:
        queues: the queues' names.
        database: the key of the PgqueResource whose database has the queues.
        max_dead_letters: how many dead letters a queue may have.
        severity: the severity of a failure, ERROR or WARN.
        automation_condition: when Dagster evaluates the checks automatically.

    Returns:
        The checks, for the Definitions. They need the resource of the database.

    Raises:
        DagsterInvalidDefinitionError: if the number is negative.
    """
    of = Database(database)
    problem = count_problem("max_dead_letters", max_dead_letters, at_least=0)
    if problem is not None:
        raise dg.DagsterInvalidDefinitionError(f"a check on dead letters: {problem}")

    def build(queue: str) -> dg.AssetChecksDefinition:
        @dg.asset_check(
            asset=of.dead_letters_key(queue),
            name=CHECK,
            description=f"At most {max_dead_letters} dead letters in queue {queue}.",
            automation_condition=automation_condition,
        )
        @takes_resource(of)
        def dead_letters(pgque: PgqueResource) -> dg.AssetCheckResult:
            with pgque.client() as client:
                return dead_letter_result(client, of, queue, max_dead_letters, severity)

        return dead_letters

    return [build(queue) for queue in queues]


def dead_letter_result(
    client: Client,
    database: Database,
    queue: str,
    max_dead_letters: int = 0,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.ERROR,
) -> dg.AssetCheckResult:
    """Evaluates the check on the dead letters of a queue."""
    counts = client.dead_letter_counts(queue)
    number = sum(count.count for count in counts)
    metadata: Metadata = {
        "dead_letters": number,
        "allowed": max_dead_letters,
        "by_consumer_and_reason": dead_letter_table(counts),
    }
    description = None
    if number > max_dead_letters:
        most = max(counts, key=lambda each: each.count)
        metadata["what_to_do"] = dg.MetadataValue.md(what_to_do_about(database, queue))
        description = (
            f"{number} dead letters, {max_dead_letters} allowed; most of {most.consumer}: "
            f"{most.reason or 'no reason'}"
        )
    return dg.AssetCheckResult(
        passed=description is None,
        asset_key=database.dead_letters_key(queue),
        check_name=CHECK,
        severity=severity,
        description=description,
        metadata=metadata,
    )


def what_to_do_about(database: Database, queue: str) -> str:
    """Returns how to inspect a queue's dead letters, and how to replay or purge them."""
    name = queue.replace("'", "''")
    replay, purge = database.named(REPLAY_JOB), database.named(PURGE_JOB)
    return (
        f"Inspect them: `select * from pgque.dlq_inspect('{name}')`. After correcting the cause, "
        f"send them again to the consumers that gave up on them, with the job "
        f"`{replay}` or `select * from pgque.dlq_replay_all('{name}')`. Or delete them, with "
        f"`{purge}` or `select pgque.dlq_purge('{name}', '0')`."
    )

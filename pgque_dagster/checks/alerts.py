"""`build_pgque_alerts`: notifies once when a problem begins, and once when it is over.

A failed asset check does not fail a run, so run-failure sensors do not see it. This sensor queries
the database itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from ..client import Client, DeadLetter, Limits, PgqueError
from ..client.holder import consumer_states
from ..client.ranges import duration_problem
from ..project.database import DEFAULT, Database
from ..project.queue_report import consumer_lag, why_held
from ..project.registration import how_to_create
from ..project.resource import PgqueResource, takes_resource
from .alert_cursor import AlertCursor, Problem
from .dead_letters import what_to_do_about
from .lag import too_far_behind

# The problem of dead letters is over after this time without new ones.
_QUIET = timedelta(hours=1)
_DEAD_LETTERS = "dead_letters"
_MISSING = "queue"
_DATABASE = Problem("", "database")
_HELD = "held_batch"


@dataclass(frozen=True)
class Alert:
    """A problem that has begun or is over. Its text is one line.

    Attributes:
        queue: None for a problem of the whole database.
        problem: a check of `pgque.queue_health()`, such as `rotation_health` or
            `consumer_lag:revenue`; `held_batch:revenue:812`, one for each batch; `dead_letters` if
            there are new ones; `queue` if it does not exist; `database` if it cannot be
            queried.
        since: when the problem was first seen.
        is_over: whether the problem is over.
        detail: how bad the problem is and what to do; for a problem that is over, its state now.
        database: the key of the PgqueResource.
    """

    queue: str | None
    problem: str
    since: datetime
    is_over: bool
    detail: str
    database: str = DEFAULT

    def __str__(self) -> str:
        where = "" if self.queue is None else f"queue {self.queue}: "
        over = " is over" if self.is_over else ""
        since = f"since {self.since:%H:%M:%S} UTC"
        return f"{self.database}: {where}{self.problem}{over}, {since}: {self.detail}"


@dataclass(frozen=True)
class _Finding:
    is_bad: bool
    detail: str


def build_pgque_alerts(
    queues: Sequence[str],
    *,
    notify: Callable[[Alert], object],
    database: str = DEFAULT,
    max_lag: timedelta | None = None,
    name: str | None = None,
    interval: timedelta = timedelta(minutes=1),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Builds the sensor that calls a function when something is wrong with queues.

    A problem is: a critical check of `queue_health()`, on a queue or the whole database, such as a
    held batch, a consumer that delays rotation, stuck rotation, or missing ticks; new dead
    letters, until none came for an hour or none is left; a consumer more than `max_lag` behind; a
    queue that does not exist; or a database that cannot be queried.

    The sensor calls `notify` once when a problem begins and once when it is over. If `notify`
    raises, the evaluation fails and the next one repeats the call. If other calls of the same
    evaluation succeeded, it ends as skipped instead, so that those are not repeated, and the next
    one fails.

    Args:
        queues: the queues' names. The first evaluation does not report a missing queue.
        notify: is called with each alert. It should return within seconds.
        database: the key of the PgqueResource whose database has the queues.
        max_lag: how far a consumer may be behind; None leaves this to the health check
            `consumer_lag`, which is critical at a whole rotation period.
        name: the sensor's name; by default `pgque_alerts`, with the database in front.
        interval: the minimum time between two evaluations.
        default_status: RUNNING, because it consumes nothing, and a sensor that is off sends no
            alerts; or STOPPED until you turn the sensor on in the UI.

    Returns:
        The sensor. It needs the resource of the database, with a role that has pgque_reader.

    Raises:
        DagsterInvalidDefinitionError: if there is no queue, or a duration is not positive.
    """
    of = Database(database)
    name = name or of.named("pgque_alerts")
    if not queues:
        raise dg.DagsterInvalidDefinitionError(
            f"sensor {name} has no queue to watch: pass at least one"
        )
    for option, time in (("interval", interval), ("max_lag", max_lag)):
        problem = time is not None and duration_problem(option, time, positive=True)
        if problem:
            raise dg.DagsterInvalidDefinitionError(f"sensor {name}: {problem}")

    @dg.sensor(
        name=name,
        minimum_interval_seconds=max(1, int(interval.total_seconds())),
        default_status=default_status,
        description=(
            f"Calls {getattr(notify, '__name__', notify)} once when a problem with "
            f"{', '.join(queues)} begins and once when it is over: a critical check of `pgque "
            "health`, such as a held batch or missing ticks; new dead letters; "
            f"{'' if max_lag is None else f'a consumer more than {max_lag} behind; '}"
            "a queue that does not exist; a database that cannot be queried. It only reads, so "
            "unlike other sensors it is RUNNING by default. While it is off, no alerts are sent."
        ),
    )
    @takes_resource(of)
    def pgque_alerts(context: dg.SensorEvaluationContext, pgque: PgqueResource) -> dg.SensorResult:
        now = datetime.now(UTC)
        cursor = AlertCursor.read(context.cursor)
        notified, newest = dict(cursor.notified), dict(cursor.dead_letters)
        try:
            with pgque.client() as client:
                found = _health_findings(client, queues, of)
                if not context.cursor:
                    # The resource may create the queues now.
                    for queue in queues:
                        del found[Problem(queue, _MISSING)]
                found |= _of_consumers(client, queues, max_lag)
                for queue, last, detail in _newest_dead_letters(of, client, queues):
                    is_new = last.id > newest.get(queue, 0) or now - last.time < _QUIET
                    found[Problem(queue, _DEAD_LETTERS)] = _Finding(is_new, detail)
                    newest[queue] = last.id
        except PgqueError as error:
            # The state of the other problems is unknown, so they stay open.
            newest = dict(cursor.dead_letters)
            found = {problem: _Finding(True, "") for problem in notified}
            found[_DATABASE] = _Finding(True, str(error))

        failed: list[Exception] = []
        alerts = list(_alerts(database, notified, found, now))
        for alert in alerts:
            problem = Problem(alert.queue or "", alert.problem)
            try:
                notify(alert)
            except Exception as error:
                error.add_note(f"alert not sent: {alert}")
                failed.append(error)
                if alert.problem == _DEAD_LETTERS:
                    newest[problem.queue] = cursor.dead_letters.get(problem.queue, 0)
            else:
                if alert.is_over:
                    del notified[problem]
                else:
                    notified[problem] = alert.since
        if failed and len(failed) == len(alerts):
            raise failed[0]
        for each in failed:
            context.log.error(f"notify raised {each!r}; {each.__notes__[-1]}")
        return dg.SensorResult(
            skip_reason=(
                f"{len(alerts) - len(failed)} of {len(alerts)} alerts sent; open problems: "
                f"{', '.join(' '.join(filter(None, each)) for each in sorted(notified)) or 'none'}"
            ),
            cursor=AlertCursor(
                notified=sorted(notified.items()), dead_letters=newest
            ).model_dump_json(),
        )

    return pgque_alerts


def _alerts(
    database: str,
    notified: Mapping[Problem, datetime],
    found: Mapping[Problem, _Finding],
    now: datetime,
) -> Iterator[Alert]:
    for problem, each in sorted(found.items(), key=lambda item: item[0]):
        if each.is_bad and problem not in notified:
            yield Alert(problem.queue or None, problem.name, now, False, each.detail, database)
    for problem, since in sorted(notified.items()):
        over = found.get(problem, _Finding(False, "it is no longer found"))
        if not over.is_bad:
            yield Alert(problem.queue or None, problem.name, since, True, over.detail, database)


def _health_findings(
    client: Client, queues: Sequence[str], database: Database
) -> dict[Problem, _Finding]:
    """Returns the health checks, including those that are not critical."""
    found = {_DATABASE: _Finding(False, "it answers again")}
    health = [row for row in client.health() if row.queue in (None, *queues)]
    for row in health:
        if not row.check.startswith(f"{_HELD}:"):
            is_bad = row.status == "critical"
            found[Problem(row.queue or "", row.check)] = _Finding(is_bad, row.detail)
    existing = {row.queue for row in health}
    for queue in queues:
        is_missing = queue not in existing
        how = f"it does not exist. {how_to_create(queue, database)}"
        detail = how if is_missing else "it exists"
        found[Problem(queue, _MISSING)] = _Finding(is_missing, detail)
    return found


def _of_consumers(
    client: Client, queues: Sequence[str], max_lag: timedelta | None
) -> dict[Problem, _Finding]:
    """Returns the held batches, each as its own problem, and the consumers too far behind."""
    infos = [info for info in client.consumers() if info.queue in queues]
    states = client.run(consumer_states([(info.queue, info.name) for info in infos], Limits()))
    found = {
        Problem(state.queue, f"{_HELD}:{state.consumer}:{state.batch_id}"): held
        for state in states
        if (held := why_held(state))
    }
    for info in infos:
        if max_lag is not None and (problem := too_far_behind(consumer_lag(info), max_lag)):
            found[Problem(info.queue, f"consumer_lag:{info.name}")] = problem
    return {problem: _Finding(True, detail) for problem, detail in found.items()}


def _newest_dead_letters(
    database: Database, client: Client, queues: Sequence[str]
) -> Iterator[tuple[str, DeadLetter, str]]:
    """Yields each queue with dead letters, the newest of them, and what to do."""
    for stats in client.queue_stats():
        if stats.queue in queues and (last := client.dead_letters(stats.queue, limit=1)):
            detail = f"{stats.dead_letters} are stored. {what_to_do_about(database, stats.queue)}"
            yield stats.queue, last[0], detail

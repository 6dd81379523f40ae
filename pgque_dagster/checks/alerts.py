"""`build_pgque_alerts`: tells each problem once when it begins, and once when it is over.

A failing asset check fails no run, so sensors on failed runs do not see it. This one asks the
database itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import dagster as dg

from ..client import Client, Limits, PgqueError
from ..client.calls.states import consumer_states
from ..resource import PgqueResource
from ..sensors.attempts import name_batch
from ..sensors.observation import consumer_lag
from .alert_cursor import AlertCursor, GivenUp, Problem
from .dead_letters import what_to_do_about

# Dead letters are no longer growing once there were no more for so long.
_QUIET = timedelta(hours=1)
_COUNTER = "pgque.message.dead_lettered_total"
_DATABASE = Problem("", "database")
_HELD = "held_batch"


@dataclass(frozen=True)
class Alert:
    """A problem that has begun or is over, for whoever is on call. As text it is one line.

    Attributes:
        queue: None for a problem of the whole database.
        problem: the check that `pgque.queue_health()` names, such as `rotation_health`,
            `consumer_lag:revenue`; `held_batch:revenue:812`, for each batch; `dead_letters`, for
            more events that were given up; `queue`, for one that does not exist; `database`, for
            one that cannot be asked.
        since: when it was seen first.
        is_over: whether this tells its end.
        detail: how bad it is and what to do; of one that is over, how it is now.
    """

    queue: str | None
    problem: str
    since: datetime
    is_over: bool
    detail: str

    def __str__(self) -> str:
        where = "" if self.queue is None else f"queue {self.queue}: "
        over = " is over" if self.is_over else ""
        return f"pgque: {where}{self.problem}{over}, since {self.since:%H:%M:%S} UTC: {self.detail}"


@dataclass(frozen=True)
class _Found:
    is_bad: bool
    detail: str


def build_pgque_alerts(
    queues: Sequence[str],
    *,
    notify: Callable[[Alert], object],
    max_lag: timedelta | None = None,
    name: str = "pgque_alerts",
    interval: timedelta = timedelta(minutes=1),
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Makes the sensor that tells somebody what is wrong with queues.

    A problem is each check of `queue_health()` that is critical, of a queue or the whole database:
    a held batch, a consumer that holds up rotation, rotation that is stuck, no ticks; more dead
    letters than before, which is over an hour after the last one; a consumer that is more than
    `max_lag` behind; and a database that cannot be asked.

    Each is told once when it begins and once when it is over. Where `notify` raises, the alert is
    told again at the next evaluation, and the evaluation is red; one that told other alerts before
    ends as skipped, so that those are not told twice, and the next one is red.

    Args:
        queues: the queues' names.
        notify: gets each alert. It should end within seconds.
        max_lag: how far a consumer may be behind; None leaves it to the check of health, which is
            critical at a whole rotation period.
        name: the sensor's name.
        interval: between two evaluations.
        default_status: whether the sensor runs without being switched on.

    Returns:
        The sensor. It needs the resource `pgque`, with a role that has pgque_reader.

    Raises:
        DagsterInvalidDefinitionError: if there is no queue, or a duration is not positive.
    """
    if not queues:
        raise dg.DagsterInvalidDefinitionError(f"sensor {name} has no queue to watch: name some")
    if interval <= timedelta(0) or (max_lag is not None and max_lag <= timedelta(0)):
        raise dg.DagsterInvalidDefinitionError(
            f"sensor {name} has interval={interval}, max_lag={max_lag}: give positive durations"
        )

    @dg.sensor(
        name=name,
        minimum_interval_seconds=max(1, int(interval.total_seconds())),
        default_status=default_status,
        description=f"Tells what is wrong with {', '.join(queues)}, and when it is over.",
    )
    def pgque_alerts(context: dg.SensorEvaluationContext, pgque: PgqueResource) -> dg.SensorResult:
        now = datetime.now(UTC)
        cursor = AlertCursor.read(context.cursor)
        try:
            with pgque.client() as client:
                found = _look(client, queues) | _held(client, queues)
                if max_lag is not None:
                    found |= _late(client, queues, max_lag)
                given_up = _count_given_up(client, queues, cursor, now)
                found |= _growing(client, given_up)
        except PgqueError as error:
            # Of the other problems nothing is known, so they go on.
            given_up = dict(cursor.given_up)
            found = {problem: _Found(True, "") for problem in cursor.told}
            found[_DATABASE] = _Found(True, str(error))

        told = dict(cursor.told)
        failed: list[Exception] = []
        alerts = list(_alerts(cursor, found, now))
        for alert in alerts:
            problem = Problem(alert.queue or "", alert.problem)
            try:
                notify(alert)
            except Exception as error:
                error.add_note(f"not told: {alert}")
                failed.append(error)
            else:
                if alert.is_over:
                    del told[problem]
                else:
                    told[problem] = alert.since
        if failed and len(failed) == len(alerts):
            raise failed[0]
        for each in failed:
            context.log.error(f"notify raised {each!r}, {each.__notes__[-1]}")
        return dg.SensorResult(
            skip_reason=(
                f"{len(alerts) - len(failed)} of {len(alerts)} alerts told; problems that go on: "
                f"{', '.join(_name(problem) for problem in sorted(told)) or 'none'}"
            ),
            cursor=AlertCursor(told, given_up).write(),
        )

    return pgque_alerts


def _alerts(cursor: AlertCursor, found: Mapping[Problem, _Found], now: datetime) -> Iterator[Alert]:
    for problem, each in sorted(found.items(), key=lambda item: item[0]):
        if each.is_bad and problem not in cursor.told:
            yield Alert(problem.queue or None, problem.name, now, False, each.detail)
    for problem, since in sorted(cursor.told.items()):
        over = found.get(problem, _Found(False, "nothing is found of it any more"))
        if not over.is_bad:
            yield Alert(problem.queue or None, problem.name, since, True, over.detail)


def _look(client: Client, queues: Sequence[str]) -> dict[Problem, _Found]:
    """Returns the checks of health, those that are well among them."""
    found = {_DATABASE: _Found(False, "it answers again")}
    health = [row for row in client.health() if row.queue in (None, *queues)]
    for row in health:
        if not row.check.startswith(f"{_HELD}:"):
            is_bad = row.status == "critical"
            found[Problem(row.queue or "", row.check)] = _Found(is_bad, row.detail)
    existing = {row.queue for row in health}
    for queue in queues:
        is_missing = queue not in existing
        detail = "it does not exist: create it, or watch it no more" if is_missing else "it exists"
        found[Problem(queue, "queue")] = _Found(is_missing, detail)
    return found


def _held(client: Client, queues: Sequence[str]) -> dict[Problem, _Found]:
    """Returns the batches that are held, each a problem of its own."""
    names = [(info.queue, info.name) for info in client.consumers() if info.queue in queues]
    return {
        Problem(state.queue, f"{_HELD}:{state.consumer}:{state.batch_id}"): _Found(
            True, f"{name_batch(state)} is held {state.held_reason}"
        )
        for state in client.run(consumer_states(names, Limits()))
        if state.held_reason
    }


def _late(client: Client, queues: Sequence[str], max_lag: timedelta) -> dict[Problem, _Found]:
    found = {}
    for info in client.consumers():
        lag = consumer_lag(info)
        if info.queue in queues and lag > max_lag:
            found[Problem(info.queue, f"consumer_lag:{info.name}")] = _Found(
                True,
                f"{timedelta(seconds=round(lag.total_seconds()))} behind, {max_lag} allowed: "
                "see that its sensor or worker runs and keeps up",
            )
    return found


def _growing(client: Client, given_up: Mapping[str, GivenUp]) -> dict[Problem, _Found]:
    found = {}
    for stats in client.queue_stats():
        if each := given_up.get(stats.queue):
            found[Problem(stats.queue, "dead_letters")] = _Found(
                each.grown_at is not None,
                f"{each.ever} events were given up in all, {stats.dead_letters} dead letters wait. "
                + what_to_do_about(stats.queue),
            )
    return found


def _count_given_up(
    client: Client, queues: Sequence[str], cursor: AlertCursor, now: datetime
) -> dict[str, GivenUp]:
    ever = dict.fromkeys(queues, 0)
    for metric in client.metrics():
        if metric.name == _COUNTER and metric.labels["queue"] in ever:
            ever[metric.labels["queue"]] += int(metric.value)
    waiting = {stats.queue: stats.dead_letters for stats in client.queue_stats()}
    counted = {}
    for queue, number in ever.items():
        before = cursor.given_up.get(queue)
        # At the first look, those that wait are news.
        known = before.ever if before else 0 if waiting.get(queue) else number
        now_given_up = GivenUp(number, before.grown_at if before else None)
        # Only a queue that was dropped and created again has fewer.
        if number > known or 0 < number < known:
            now_given_up = GivenUp(number, now)
        elif _is_over(now_given_up, Problem(queue, "dead_letters") in cursor.told, now):
            now_given_up = replace(now_given_up, grown_at=None)
        counted[queue] = now_given_up
    return counted


def _is_over(given_up: GivenUp, is_told: bool, now: datetime) -> bool:
    """Whether the growth has ended. One that could not be told yet has not."""
    return given_up.grown_at is not None and is_told and now - given_up.grown_at >= _QUIET


def _name(problem: Problem) -> str:
    return f"{problem.queue} {problem.name}".strip()

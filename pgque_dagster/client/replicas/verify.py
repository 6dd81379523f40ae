"""The result of comparing a replica with its table, recorded in the table's database.

The record stays until a later comparison, even if batches or copies are applied in between.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from time import monotonic
from typing import Any, LiteralString

from ..encoding import encode
from ..errors import PgqueError
from ..operation import Call, nothing
from ..ranges import age
from ..session import Session
from .capture import copy_again
from .key_parts import KeyPart, due_parts
from .spec import TableSpec
from .status import ReplicaStatus, replica_of_table

# How many differences are listed.
SHOWN = 10
# The name of the threads that compare.
THREAD = "pgque-comparison"
REPLICA_GONE = "the replica is gone, or another program changed it"
ALTERED = "the table was altered meanwhile"


@dataclass(frozen=True)
class Difference:
    """A key whose rows differ.

    Attributes:
        kind: `missing` in the replica, `extra` in it, `different`, or `repeated`.
        key: the values of the key.
        here: the rows that the table has for it, as JSON.
        there: those that the replica has.
    """

    kind: str
    key: dict[str, Any]
    here: tuple[str, ...]
    there: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """The result of comparing a replica with its table.

    Attributes:
        table: schema and name.
        tick_id: the tick at which they were compared; None if they could not be compared.
        version: the version of the replica, if it has versions.
        rows: how many rows the table has.
        differences: how many keys differ.
        examples: up to ten of them.
        why_not: why they could not be compared; None if they were.
        part: the part of the table that was compared; None for all rows.
        doubt: why rows may differ since the table was altered; if any do, the table is copied.
    """

    table: str
    tick_id: int | None
    version: int | None
    rows: int = 0
    differences: int = 0
    examples: tuple[Difference, ...] = ()
    why_not: str | None = None
    part: KeyPart | None = None
    doubt: str | None = None

    @property
    def problem(self) -> str | None:
        """How the replica differs from its table; None if it does not, or if that is unknown."""
        if self.why_not == REPLICA_GONE:
            return REPLICA_GONE
        if self.why_not is not None or not self.differences:
            return None
        shown = "; ".join(f"{each.kind} {each.key}" for each in self.examples)
        where = f"in {self.part}, " if self.part else ""
        since = f", since {self.doubt}" if self.doubt else ""
        return f"{where}{self.differences} of {self.rows} rows differ{since}: {shown}"

    @property
    def is_equal(self) -> bool:
        """Whether the rows are proven to be the same."""
        return self.why_not is None and not self.differences


def compare_and_record(
    session: Session,
    queue: str,
    consumer: str,
    table: str | TableSpec,
    compare: Callable[[KeyPart | None], Verification],
    timeout: timedelta,
    share: float = 1,
    log: Callable[[str], object] = lambda text: None,
    *,
    whole: bool = True,
) -> Verification:
    """Compares a replica with its table, and records the result, or why there is none.

    If a table was altered so that rows may differ, and rows differ, the next batch copies it. Of a
    table in parts, all are compared, or without `whole` the one that was compared least recently.

    Returns:
        The result: of parts, the first that is not equal, or the last. If the comparison takes too
        long, it has none, and continues in its thread.
    """
    spec, ends = TableSpec.of(table), monotonic() + timeout.total_seconds()
    before = session.run(replica_of_table(queue, consumer, spec.source))
    copy, last = (before.since_tick, before.verified_tick) if before else (None, None)
    table_name, compared = (before.table, before.compared) if before else (spec.source, [])

    def record(done: Verification) -> None:
        found: tuple[object, ...] = (done.tick_id, done.rows, done.problem, done.why_not)
        part = done.part and encode({x: getattr(done.part, x) for x in ("number", "of", "since")})
        if done.why_not == REPLICA_GONE:
            # Nothing was read at a new tick; the last comparison may have made the tick.
            found = max(done.tick_id or 0, last or 0), None, REPLICA_GONE, None
            part = None
        values = (queue, consumer, table_name, copy, *found, part)
        query: LiteralString = (
            "select pgque.note_verified(%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb)"
        )
        session.run(Call(query, values, nothing))

    shown = Verification(table_name, None, None)
    try:
        due = due_parts(session, spec, share, compared, whole=whole)
        for left, part in zip(range(len(due))[::-1], due, strict=True):
            done = _bounded(partial(compare, part), spec.source, timeout, ends)
            done = replace(done, part=part, doubt=before.doubt if before else None)
            record(done)
            if shown.is_equal or done.why_not is not None:
                shown = done
            if done.why_not is not None or (
                done.differences and before and _copies(session, before)
            ):
                break
            if part is not None:
                log(
                    f"{table_name}, {part}: {done.differences} of {done.rows} rows differ at tick "
                    f"{done.tick_id}; {left} parts are left"
                )
    except Exception as error:
        # The first line of Spark's errors is the message. The database may be unreachable too.
        why_not = next(iter(str(error).splitlines()), type(error).__name__)
        with suppress(PgqueError):
            record(Verification(table_name, None, None, why_not=why_not))
        raise
    return shown


def _copies(session: Session, before: ReplicaStatus) -> bool:
    """Requests a copy of a table that differs after it was altered, unless it was just copied."""
    place = before.queue, before.consumer, before.table
    now = session.run(replica_of_table(*place))
    if not before.doubt or not now or not now.doubt or now.copied_tick != before.copied_tick:
        return False
    copy_again(session, *place)
    return True


def _bounded(
    compare: Callable[[], Verification], table: str, timeout: timedelta, ends: float
) -> Verification:
    """Runs a comparison in a thread, because a hanging one cannot always be interrupted."""
    done: Future[Verification] = Future()

    def run() -> None:
        try:
            done.set_result(compare())
        except BaseException as error:
            done.set_exception(error)

    # Python's pools would wait for it when the process ends.
    threading.Thread(target=run, name=THREAD, daemon=True).start()
    try:
        return done.result(max(0, ends - monotonic()))
    except TimeoutError:
        if done.done():  # The comparison itself timed out.
            raise
        why = (
            f"it took longer than {age(timeout)}; see what it waits for, such as a lock on the "
            "table or a storage that does not answer, or raise verify_timeout"
        )
        return Verification(table, None, None, why_not=why)


def last_acked_tick(session: Session, queue: str, consumer: str) -> int:
    """Returns the tick up to which a consumer has acked its batches."""
    return session.run(
        Call(
            "select last_tick from pgque.get_consumer_info(%s, %s)",
            (queue, consumer),
            lambda rows: int(rows[0][0]),
        )
    )

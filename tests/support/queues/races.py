"""Two sessions at once."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.queues.sql import Connection

Step = Callable[[Connection], Any]


def race(
    db: Connection, first: Step, second: Step, *, rollback: bool = False
) -> tuple[Any, Future[Any]]:
    """The second step begins while the first one's transaction is open, and waits for its end.

    Returns what the first one answered, and the answer or error of the second one.
    """
    one, two, watch = db.another(), db.another(), db.another()
    with ThreadPoolExecutor(1) as pool, one.transaction(force_rollback=rollback):
        answer = first(one)
        waiting = pool.submit(second, two)
        watch.wait_until_blocked(two)
    return answer, waiting


def draw_next(db: Connection, low: float, high: float) -> None:
    """Lets the next random number of the session be between two."""
    for number in range(1000):
        db.value("select setseed(%s)::text", number / 1000)
        if low <= db.value("select random()") < high:
            db.value("select setseed(%s)::text", number / 1000)
            return
    raise AssertionError("no such number")

"""Two sessions at once."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.support.queues import Another, Connection, wait_until_blocked

Step = Callable[[Connection], Any]


def race(
    another: Another, first: Step, second: Step, *, rollback: bool = False
) -> tuple[Any, Future[Any]]:
    """The second step begins while the first one's transaction is open, and waits for its end.

    Returns what the first one answered, and the answer or error of the second one.
    """
    one, two, watch = another(), another(), another()
    with ThreadPoolExecutor(1) as pool, one.transaction(force_rollback=rollback):
        answer = first(one)
        waiting = pool.submit(second, two)
        wait_until_blocked(watch, two)
    return answer, waiting

"""Goes on after errors that pass, such as a broken connection."""

import threading
from collections.abc import Callable, Iterator

from .errors import ConnectionFailed, DatabaseError, TransactionOutdated

PASSING = (ConnectionFailed, DatabaseError, TransactionOutdated)
_SHORTEST = 0.1
_LONGEST = 30.0


def keep_running(
    work: Callable[[], Iterator[object]],
    stopped: threading.Event,
    passing: tuple[type[Exception], ...],
    log: Callable[[Exception, str], None],
) -> None:
    """Works until `stopped` is set; begins again 0.1 s, 0.2 s, up to 30 s after errors that pass.

    Args:
        work: yields after each step that succeeded, from which on waits are short again.
        stopped: ends the waits, and has to end `work`.
        passing: the errors that pass.
        log: is called with such an error, and a sentence about the wait.
    """
    wait = _SHORTEST
    while not stopped.is_set():
        try:
            for _ in work():
                wait = _SHORTEST
        except passing as error:
            log(error, f"Trying again in {wait:.1f} s.")
            stopped.wait(wait)
            wait = min(wait * 2, _LONGEST)

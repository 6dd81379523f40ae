"""Waits that grow between attempts to reconnect."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from ..errors import InvalidArgument

logger = logging.getLogger("pgque.consumer")

_FIRST = 0.1
_LONGEST = 30.0


class Backoff:
    """Calls a function again after errors that pass: after 0.1 s, 0.2 s, up to 30 s.

    Args:
        stopped: ends the waits.
        passing: the errors that pass.

    Raises:
        InvalidArgument: if the package tenacity is missing.
    """

    def __init__(self, stopped: threading.Event, passing: tuple[type[Exception], ...]) -> None:
        try:
            import tenacity
        except ImportError as error:
            raise InvalidArgument(
                "a consumer needs the package tenacity",
                "Run pip install 'pgque-dagster[consumer]'.",
            ) from error
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(passing),
            wait=tenacity.wait_exponential(multiplier=_FIRST, max=_LONGEST),
            stop=lambda state: stopped.is_set(),
            sleep=tenacity.sleep_using_event(stopped),
            before_sleep=_log,
            retry_error_callback=lambda state: None,
        )

    def call(self, function: Callable[[], None]) -> None:
        """Calls the function until it returns, or `stopped` is set."""
        self._retrying(function)


def _log(state: Any) -> None:
    wait = state.next_action.sleep
    logger.warning("%s Trying again in %.1f s.", state.outcome.exception(), wait)

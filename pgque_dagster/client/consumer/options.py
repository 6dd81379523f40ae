"""Checks the options of a consumer when it is made."""

from ..consuming import NO_LIMITS
from ..errors import InvalidArgument
from ..models import Limits
from ..partitions import OnFailure


def check_options(
    queue: str,
    concurrency: int,
    subconsumer: str | None,
    slots: int | None,
    on_failure: OnFailure,
    limits: Limits,
) -> None:
    """Refuses options that make no sense.

    Raises:
        InvalidArgument: with what to change.
    """
    if not isinstance(queue, str):
        raise InvalidArgument(
            f"a consumer of {queue!r}", "Name one queue. Start a consumer for each of several."
        )
    if not isinstance(concurrency, int) or concurrency < 1:
        raise InvalidArgument(f"a concurrency of {concurrency!r}", "Choose 1 or more.")
    if slots is not None and (subconsumer is not None or limits != NO_LIMITS):
        raise InvalidArgument(
            "a partitioned consumer has neither subconsumers nor limits",
            "Leave out slots, or the others.",
        )
    if slots is None and on_failure != "skip":
        raise InvalidArgument(
            f"on_failure={on_failure!r} is for partitioned consumers", "Pass slots as well."
        )

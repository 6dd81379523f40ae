"""The installation: version, ticks, maintenance, scheduler."""

from datetime import timedelta
from uuid import UUID

from .call import Call, first


def version() -> Call[str]:
    """The installed schema's version."""
    return Call("select pgque.version()", (), first)


def incarnation() -> Call[UUID]:
    """The incarnation of this database."""
    return Call("select pgque.incarnation()", (), first)


def tick_period() -> Call[timedelta]:
    """The configured period of the ticker."""
    return Call("select tick_period from pgque.ticker_pace()", (), first)


def scheduler() -> Call[str | None]:
    """The scheduler whose jobs tick the queues; None without jobs."""
    return Call("select scheduler from pgque.config", (), first)

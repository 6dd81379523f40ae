"""The installation: version, ticks, maintenance, scheduler."""

from datetime import timedelta
from uuid import UUID

from .call import Call, first, nothing


def version() -> Call[str]:
    """The installed schema's version."""
    return Call("select pgque.version()", (), first)


def lineage() -> Call[UUID]:
    """The lineage of this database."""
    return Call("select pgque.lineage()", (), first)


def ticker() -> Call[int]:
    """Ticks the queues that are due; how many."""
    return Call("select pgque.ticker()", (), first)


def force_next_tick(queue: str) -> Call[None]:
    """Makes the next ticker run tick the queue."""
    return Call("select pgque.force_next_tick(%s)", (queue,), nothing)


def tick_period() -> Call[timedelta]:
    """The configured period of the ticker."""
    return Call("select tick_period from pgque.ticker_pace()", (), first)


def maint() -> Call[int]:
    """Runs rotation, retries and compaction; the number of operations done."""
    return Call("select pgque.maint()", (), first)


def start() -> Call[None]:
    """Schedules ticks and maintenance in pg_cron."""
    return Call("select pgque.start()::text", (), nothing)


def scheduler() -> Call[str | None]:
    """The scheduler whose jobs tick the queues; None without jobs."""
    return Call("select scheduler from pgque.config", (), first)


def stop() -> Call[None]:
    """Removes the jobs of pg_cron."""
    return Call("select pgque.stop()::text", (), nothing)

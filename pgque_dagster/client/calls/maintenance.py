"""The installation: version, ticks, maintenance, scheduler."""

from datetime import timedelta
from uuid import UUID

from .call import Call, first, nothing


def version() -> Call[str]:
    """The installed schema's version."""
    return Call("select pgque.version()", (), first)


def lineage() -> Call[UUID]:
    """Which life of which database this is."""
    return Call("select pgque.lineage()", (), first)


def ticker() -> Call[int]:
    """A tick where one is due; how many queues got one."""
    return Call("select pgque.ticker()", (), first)


def force_next_tick(queue: str) -> Call[None]:
    """A tick at the next ticker run, due or not."""
    return Call("select pgque.force_next_tick(%s)", (queue,), nothing)


def tick_period() -> Call[timedelta]:
    """The configured period of the ticker."""
    return Call("select tick_period from pgque.ticker_pace()", (), first)


def maint() -> Call[int]:
    """Rotation, retries, compaction."""
    return Call("select pgque.maint()", (), first)


def start() -> Call[None]:
    """Jobs of pg_cron that tick and maintain."""
    return Call("select pgque.start()::text", (), nothing)


def scheduler() -> Call[str | None]:
    """Whose jobs tick the queues; None where nobody made any."""
    return Call("select scheduler from pgque.config", (), first)


def stop() -> Call[None]:
    """The jobs' end."""
    return Call("select pgque.stop()::text", (), nothing)

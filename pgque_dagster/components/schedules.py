"""Schedules in YAML: of a consumer, and of a queue's checks."""

from datetime import timedelta
from typing import Annotated

import dagster as dg

from ..ranges import DEFAULT_MAX_EVENTS
from ..sensors.run_requests import OnExhausted
from .options import Options, duration, number, option


class ScheduleOptions(Options):
    """Options of `build_pgque_schedule`."""

    cron_schedule: Annotated[str, option("When the consumer gets a run.", "0 * * * *")]
    name: Annotated[str | None, option("The schedule's name; by default `<asset>_schedule`.")] = (
        None
    )
    execution_timezone: Annotated[
        str | None, option("The time zone of cron_schedule; by default UTC.", "Europe/Berlin")
    ] = None
    max_events: Annotated[int, number("The approximate maximum number of events in a batch.")] = (
        DEFAULT_MAX_EVENTS
    )
    max_attempts: Annotated[int, number("How many runs may claim a batch and fail.")] = 3
    backoff: Annotated[timedelta, duration("The wait after the first failure.")] = timedelta(
        seconds=10
    )
    on_exhausted: Annotated[
        OnExhausted,
        option("What happens to a batch after its last attempt failed: hold or dead_letter."),
    ] = "hold"
    default_status: Annotated[
        dg.DefaultScheduleStatus, option("RUNNING, or STOPPED until it is switched on in the UI.")
    ] = dg.DefaultScheduleStatus.STOPPED


class CheckScheduleOptions(Options):
    """When the checks of a queue run."""

    cron_schedule: Annotated[str, option("When to run the checks.", "* * * * *")] = "*/5 * * * *"
    default_status: Annotated[
        dg.DefaultScheduleStatus, option("RUNNING, or STOPPED until it is switched on in the UI.")
    ] = dg.DefaultScheduleStatus.STOPPED

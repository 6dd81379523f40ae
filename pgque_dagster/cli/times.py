"""Durations and points in time as users write them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Age(click.ParamType[timedelta]):
    """A duration as a number and a unit: `90s`, `15m`, `12h`, `30d`."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta:
        """Reads the text."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,9})([smhd])", value.strip())
        if found is None:
            self.fail(f"{value!r} is no age; write 90s, 15m, 12h or 30d", param, ctx)
        return timedelta(**{_UNITS[found[2]]: int(found[1])})


class Moment(click.ParamType[datetime]):
    """A time of ISO 8601, local without a zone; or an `Age` from now."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        """Reads the text."""
        if isinstance(value, datetime):
            return value
        text = value.strip()
        try:
            if text[-1:] in _UNITS:
                return datetime.now(UTC) + Age().convert(text, param, ctx)
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError) as error:
            self.fail(f"{value!r} is no time: {error}; write 2030-12-24T18:00, or 15m", param, ctx)

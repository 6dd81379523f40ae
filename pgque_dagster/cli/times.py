"""Durations and points in time as users write them."""

from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import click

from ..client import InvalidArgument
from ..client.ranges import parse_duration, write_position


class Age(click.ParamType[timedelta]):
    """A duration as a number and a unit: `90s`, `15m`, `12h`, `30d`."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta:
        """Reads the text."""
        if isinstance(value, timedelta):
            return value
        try:
            return parse_duration(value.strip())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class QueuePosition(click.ParamType[str]):
    """`earliest`, `latest`, a tick's number, or a time in ISO 8601 (local if it has no zone)."""

    name = "position"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Reads the text."""
        text = value.strip()
        with suppress(ValueError, OverflowError):
            if not text.isdigit():
                text = datetime.fromisoformat(text).astimezone().isoformat()
        try:
            return write_position(text)
        except InvalidArgument as error:
            self.fail(f"{error.args[0]}. {error.hint}", param, ctx)

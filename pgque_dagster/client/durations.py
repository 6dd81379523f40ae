"""Parses the durations of commands and YAML: `90s`, `15m`, `12h`, `30d`, `30 days`."""

import re
from datetime import timedelta

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
PATTERN = r"^\d{1,9}([smhd]| (second|minute|hour|day)s?)$"


def parse_duration(text: str) -> timedelta:
    """Parses a number with a unit.

    Raises:
        ValueError: if the text is not a duration.
    """
    if not re.search(PATTERN, text):
        raise ValueError(f"{text!r} is not a duration; write 90s, 15m, 12h or 30d")
    count = re.match(r"\d+", text)[0]  # type: ignore[index]
    return timedelta(**{UNITS[text[len(count) :].strip()[0]]: int(count)})

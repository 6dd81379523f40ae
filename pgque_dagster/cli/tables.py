"""Plain text tables: aligned columns, short ages, control characters escaped."""

from collections.abc import Sequence
from datetime import datetime, timedelta


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Returns rows as text under a header. Numbers are right-aligned; None is shown as `-`."""
    texts = [[as_text(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    numeric = [
        bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(header))
    ]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [list(header), *texts]
    )


def shortened(text: str | None, length: int | None) -> str | None:
    """Shortens a text to `length` characters; None means no limit."""
    if text is None or length is None or len(text) <= length:
        return text
    return text[: length - 3] + "..."


def as_text(value: object) -> str:
    """Returns a value as one line, with control characters escaped; None is `-`."""
    if value is None:
        return "-"
    if isinstance(value, timedelta):
        return age(value)
    if isinstance(value, datetime):
        return f"{value:%F %T%z}"
    if isinstance(value, float):
        return f"{value:.1f}"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
    )


def age(value: timedelta) -> str:
    """Writes a duration with its two largest units: `3.2s`, `5m 7s`, `2h 0m`, `4d 6h`."""
    seconds = max(value.total_seconds(), 0)
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {seconds}s"

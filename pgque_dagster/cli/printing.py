"""Output of commands: aligned tables and sentences, or JSON with --json; messages about waits."""

import json
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import click

from ..client.ranges import age

Row = Mapping[str, object]
"""Values by column. The column's name, with spaces, is the header; with underscores, the key."""

_JSON = "pgque.json"
_MOMENT_SECONDS = 1.5
_TEXT_WIDTH = 60


def set_json(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Makes the command print JSON. The callback of the option --json."""
    if value:
        context.meta[_JSON] = True


def wants_json() -> bool:
    """Returns whether the command was called with --json."""
    return bool(click.get_current_context().meta.get(_JSON))


def show_rows(rows: Sequence[Row], empty: str) -> None:
    """Prints rows as a table, or `empty` if there are none; or as a JSON array of objects."""
    click.echo(to_json(named(rows)) if wants_json() else as_table(rows, empty))


def show_result(sentence: str, **values: object) -> None:
    """Prints the result as a sentence, or as a JSON object with queue, consumer and values."""
    given = click.get_current_context().params
    about = {name: given[name] for name in ("queue", "consumer") if given.get(name) is not None}
    click.echo(to_json(about | values) if wants_json() else sentence)


def to_json(value: object) -> str:
    """Returns a value as JSON: durations in seconds, times in ISO 8601."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    return json.dumps(value, default=_plain, ensure_ascii=not is_unicode)


def named(rows: Sequence[Row]) -> list[dict[str, object]]:
    """Returns rows with the keys that JSON uses."""
    return [
        {name.replace(" ", "_").replace("/", "_per_"): value for name, value in row.items()}
        for row in rows
    ]


def _plain(value: object) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value)} has no JSON form")


def shortened(text: str | None) -> str | None:
    """Shortens a text for a column of a table. JSON has the full text."""
    if text is None or wants_json() or len(text) <= _TEXT_WIDTH:
        return text
    return text[: _TEXT_WIDTH - 3] + "..."


def as_table(rows: Sequence[Row], empty: str) -> str:
    """Returns rows as text under a header, or the sentence if there are no rows.

    Numbers are right-aligned; None is shown as `-`.
    """
    if not rows:
        return empty
    header = list(rows[0])
    texts = [[_as_text(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    numeric = [all(isinstance(row[name], int | float | None) for row in rows) for name in header]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in [header, *texts]
    )


def _as_text(value: object) -> str:
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


@contextmanager
def announce_if_slow(what: str) -> Iterator[None]:
    """Prints once what the command is waiting for, unless the block ends within 1.5 s.

    The text goes to stderr so that pipes stay clean. It is also printed without a terminal, for
    the logs of services.
    """
    timer = threading.Timer(_MOMENT_SECONDS, _tell, [what])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _tell(what: str) -> None:
    click.echo(f"pgque: {what} ...", err=True)

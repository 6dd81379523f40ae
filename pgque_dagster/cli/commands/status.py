"""One view of everything, once or as a screen that follows."""

import shutil
import signal
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import click

from ...client import Client, PermissionDenied
from ...client.models import QueueStats
from ..database import Database, pass_database
from ..examples import examples
from ..output import Row, as_table, named, to_json, wants_json
from ..times import Age
from .consumers import NO_CONSUMERS, consumer_rows
from .queues import NO_QUEUES, queue_rows

_BARS = "▁▂▃▄▅▆▇█"
_SAMPLES = 30


@click.command(
    epilog=examples(
        "pgque status",
        "pgque status --watch",
        "pgque status --watch --every 10s",
    ),
)
@click.option("--watch", is_flag=True, help="Show it as a screen that follows, until Ctrl-C.")
@click.option(
    "--every", type=Age(), default="2s", show_default=True, help="With --watch: how often."
)
@pass_database
def status(database: Database, watch: bool, every: timedelta) -> None:
    """Show components, queues, consumers and dead letters in one view."""
    with database.client() as client:
        if watch:
            _watch(client, every.total_seconds())
        elif wants_json():
            click.echo(to_json({name: named(rows) for name, rows in _sections(client).items()}))
        else:
            click.echo("\n\n".join(_texts(_sections(client))))


def _sections(client: Client) -> dict[str, Sequence[Row]]:
    stats = client.queue_stats()
    return {
        "components": _component_rows(client),
        "queues": queue_rows(stats),
        "consumers": consumer_rows(client),
        "dead_letters": _dead_letter_rows(client, stats),
    }


def _texts(sections: dict[str, Sequence[Row]]) -> Iterator[str]:
    empty = {
        "components": "components are shown to pgque_admin only",
        "queues": NO_QUEUES,
        "consumers": NO_CONSUMERS,
        "dead_letters": "no dead letters",
    }
    return (as_table(rows, empty[name]) for name, rows in sections.items())


def _component_rows(client: Client) -> Sequence[Row]:
    try:
        parts = client.status()
    except PermissionDenied:
        return []
    return [
        {"component": part.component, "status": part.status, "detail": part.detail}
        for part in parts
    ]


def _dead_letter_rows(client: Client, stats: Sequence[QueueStats]) -> Sequence[Row]:
    return [
        {
            "queue": queue.queue,
            "consumer": letters.consumer,
            "dead letters": letters.count,
            "reason": letters.reason,
            "oldest": letters.oldest,
        }
        for queue in stats
        if queue.dead_letters
        for letters in client.dead_letter_counts(queue.queue)
    ]


def _watch(client: Client, seconds: float) -> None:
    """Draws the view again and again, with the course of each queue's depth."""
    if not sys.stdout.isatty():
        raise click.UsageError("--watch needs a terminal; a script calls `pgque status --json`.")
    depths: dict[object, deque[int]] = defaultdict(lambda: deque(maxlen=_SAMPLES))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with _screen():
        while True:
            sections = _sections(client)
            for row in sections["queues"]:
                depths[row["queue"]].append(int(str(row["depth"])))
            sections["queues"] = [
                _with_course(row, depths[row["queue"]]) for row in sections["queues"]
            ]
            _draw(f"pgque  {datetime.now():%F %T}  every {seconds:g} s, Ctrl-C ends", sections)
            time.sleep(seconds)


def _with_course(row: Row, depths: Sequence[int]) -> Row:
    shown = {name: value for name, value in row.items() if name not in ("last tick", "rotated ago")}
    return {"queue": shown.pop("queue"), "depth": shown.pop("depth"), "": sparkline(depths)} | shown


def sparkline(values: Sequence[int]) -> str:
    """Draws numbers as bars, the highest at full height and 0 at the lowest."""
    top = max(max(values, default=0), 1)
    return "".join(_BARS[value * (len(_BARS) - 1) // top] for value in values)


@contextmanager
def _screen() -> Iterator[None]:
    """Uses the terminal's second screen without a cursor; the first one comes back unchanged."""
    click.echo("\033[?1049h\033[?25l", nl=False)
    try:
        yield
    finally:
        click.echo("\033[?25h\033[?1049l", nl=False)


def _draw(title: str, sections: dict[str, Sequence[Row]]) -> None:
    width, height = shutil.get_terminal_size()
    lines = [line for text in _texts(sections) for line in ["", *text.splitlines()]]
    shown = [title, *lines]
    if len(shown) > height:
        shown = [*shown[: height - 1], f"... {len(shown) - height + 1} lines more"]
    # Over the old picture, and only then the rest is cleared: so it does not flicker.
    body = "\033[K\n".join(_marked(line[:width]) for line in shown)
    click.echo(f"\033[H{body}\033[K\033[J", nl=False)


def _marked(line: str) -> str:
    words = set(line.split())
    if words & {"critical", "paused", "stopped", "missing"}:
        return click.style(line, fg="red")
    return line

"""Runs the examples of a page, each as long as the consumer that it runs has something to do."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import django.db
import psycopg
import sqlalchemy as sa
from django.conf import settings
from django.db.utils import ConnectionHandler

from pgque_dagster.client import Client, Consumer, Ticker
from tests.support.runner.waiting import in_threads, wait_until


def blocks(page: str) -> list[str]:
    """The Python of a page."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def run(block: str, values: dict[str, Any], is_done: Callable[[Consumer], bool]) -> None:
    """Runs a block, and stops the consumer that it runs once that is done."""
    if ".run()" not in block:
        exec(block, values)
        return
    for name in [name for name, found in values.items() if isinstance(found, Consumer)]:
        del values[name]
    errors: list[BaseException] = []

    def execute() -> None:
        try:
            exec(block, values)
        except BaseException as error:
            errors.append(error)

    def made() -> list[Consumer]:
        return [found for found in list(values.values()) if isinstance(found, Consumer)]

    def is_over() -> bool:
        running = made()
        return bool(running) and is_done(running[0])

    with in_threads(execute):
        wait_until(lambda: bool(errors) or is_over())
        for consumer in made():
            consumer.stop()
    assert errors == []


def has_nothing_to_do(consumer: Consumer, url: str) -> bool:
    """Whether it has finished all batches of its first queue."""
    with Client(url) as client:
        found = client.consumers(consumer.queue)
    mine = [info for info in found if info.name == consumer.name]
    return bool(mine) and all(not info.pending_events and not info.batch_id for info in mine)


def sqlalchemy_url(url: str) -> sa.URL:
    parts = psycopg.conninfo.conninfo_to_dict(url)
    query = {str(key): str(text) for key, text in parts.items()}
    return sa.URL.create("postgresql+psycopg", query=query)


def use_django(url: str) -> None:
    """Makes it the database of Django."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    parts = psycopg.conninfo.conninfo_to_dict(url)
    names = {"NAME": "dbname", "HOST": "host", "USER": "user"}
    database = {name: parts.pop(key, "") for name, key in names.items()}
    handler = ConnectionHandler(
        {"default": {"ENGINE": "django.db.backends.postgresql", **database, "OPTIONS": parts}}
    )
    django.db.connections["default"] = handler["default"]


@contextmanager
def ticking(url: str) -> Iterator[None]:
    """Ticks in the background during the block."""
    ticker = Ticker(url)
    with in_threads(ticker.run, stop=ticker.stop):
        yield

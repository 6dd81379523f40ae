"""The examples of docs/client.md and of the client's docstrings run as they are written."""

import asyncio
import doctest
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import django.db
import psycopg
import pytest
import sqlalchemy as sa
from django.conf import settings
from django.db.utils import ConnectionHandler
from sqlalchemy.ext.asyncio import create_async_engine

from pgque_dagster.client import AsyncClient, Client, Consumer, Event, Ticker
from tests.support.queues import PATIENCE_SECONDS, Connection, connect, make_queue, rows, tick

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def with_examples() -> Iterator[tuple[str, str]]:
    """Docstrings of the client's classes and of their methods."""
    for owner in (*Client.__mro__, AsyncClient, Consumer):
        yield owner.__name__, owner.__doc__ or ""
        for name, member in vars(owner).items():
            if name != "__doc__":
                yield f"{owner.__name__}.{name}", getattr(member, "__doc__", None) or ""


EXAMPLES = {name: doc for name, doc in with_examples() if ">>>" in doc}


@contextmanager
def ticking(url: str) -> Iterator[None]:
    ticker = Ticker(url)
    thread = threading.Thread(target=ticker.run)
    thread.start()
    try:
        yield
    finally:
        ticker.stop()
        thread.join(PATIENCE_SECONDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_runs(name: str, database_url: str, db: Connection) -> None:
    make_queue(db, "orders")
    with Client(database_url) as client, ticking(database_url):
        values = {
            "url": database_url,
            "client": client,
            "asyncio": asyncio,
            "Client": Client,
            "AsyncClient": AsyncClient,
            "Consumer": Consumer,
            "Event": Event,
        }
        test = doctest.DocTestParser().get_doctest(EXAMPLES[name], values, name, None, 0)
        assert test.examples
        assert doctest.DocTestRunner().run(test).failed == 0


def test_the_important_methods_have_examples() -> None:
    sending = {f"Producing.{name}" for name in ("send", "send_batch", "send_idem", "copy_events")}
    assert {"Client", "AsyncClient", "Consumer", *sending} <= set(EXAMPLES)


def has_nothing_to_do(consumer: Consumer, url: str) -> bool:
    """Whether it has finished all batches; between two of them it is idle, too."""
    if consumer.health().state != "idle":
        return False
    with Client(url) as client:
        found = [info for info in client.consumers("orders") if info.name == consumer.name]
    return bool(found) and all(not info.pending_events and not info.batch_id for info in found)


def run(block: str, values: dict[str, Any]) -> None:
    """Runs a block, and stops the consumer that it runs once the consumer has nothing to do."""
    if ".run()" not in block and ".run_async()" not in block:
        exec(block, values)
        return
    values.pop("consumer", None)
    errors: list[BaseException] = []

    def execute() -> None:
        try:
            exec(block, values)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while thread.is_alive() and time.monotonic() < deadline:
        consumer = values.get("consumer")
        if consumer is not None and has_nothing_to_do(consumer, values["url"]):
            break
        time.sleep(0.01)
    values["consumer"].stop()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert errors == []


def test_the_examples_of_the_page_run_one_after_another(database_url: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(database_url)
    engine_url = sa.URL.create(
        "postgresql+psycopg", query={str(key): str(value) for key, value in parts.items()}
    )
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    port = {"port": parts["port"]} if "port" in parts else {}
    django.db.connections["default"] = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts["dbname"],
                "HOST": parts.get("host", ""),
                "USER": parts.get("user", ""),
                "OPTIONS": port,
            }
        }
    )["default"]
    mails: list[str] = []
    shipped: list[int] = []
    webhooks: list[int] = []

    async def call_webhook(order: dict[str, int]) -> None:
        webhooks.append(order["id"])

    engine = sa.create_engine(engine_url)
    values: dict[str, Any] = {
        "__name__": "example",
        "asyncio": asyncio,
        "url": database_url,
        "engine": engine,
        "async_engine": create_async_engine(engine_url, poolclass=sa.NullPool),
        "send_mail": mails.append,
        "ship": lambda order: shipped.append(order["id"]),
        "call_webhook": call_webhook,
    }
    with connect(database_url) as db:
        db.execute("create table orders (id int)")
        db.execute("create table paid (id int)")
        for block in BLOCKS:
            run(block, values)
            if rows(db, "select from pgque.queue"):
                tick(db, "orders")
        orders = [2, 3, 4, 5, 2002]
        assert rows(db, "select id from orders order by id") == [(id,) for id in orders]
        paid = [2, 3, 4, 5, 7, 9]
        assert rows(db, "select id from paid order by id") == [(id,) for id in paid]
    django.db.connections["default"].close()
    engine.dispose()
    assert mails == ["ada@example.com"]
    assert sorted(shipped) == [1, *paid]
    assert sorted(webhooks) == paid

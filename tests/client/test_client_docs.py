"""The examples of docs/client.md and of the client's docstrings run as they are written."""

import asyncio
import doctest
import inspect
import pydoc
from collections.abc import Iterator
from inspect import getattr_static
from typing import Any

import django.db
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from pgque_dagster.client import AsyncBatch, AsyncClient, Batch, Client, Consumer, Event
from pgque_dagster.client.operation import operation
from tests.client.examples import (
    blocks,
    has_nothing_to_do,
    run,
    sqlalchemy_url,
    ticking,
    use_django,
)
from tests.support.queues.sql import Connection, connect


def with_examples() -> Iterator[tuple[str, str]]:
    """Docstrings of the client's classes and of their methods."""
    for owner in (*Client.__mro__, AsyncClient, Consumer):
        yield owner.__name__, owner.__doc__ or ""
        for name, member in vars(owner).items():
            if name != "__doc__":
                yield f"{owner.__name__}.{name}", getattr(member, "__doc__", None) or ""


def operations(face: type) -> list[str]:
    return [name for name in dir(face) if isinstance(getattr_static(face, name), operation)]


EXAMPLES = {name: doc for name, doc in with_examples() if ">>>" in doc}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_docstring_runs(name: str, database_url: str, db: Connection) -> None:
    db.make_queue("orders")
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


@pytest.mark.parametrize("face", [Client, AsyncClient, Batch, AsyncBatch])
def test_help_and_editors_find_each_method_as_it_is_written(face: type) -> None:
    for name in operations(face):
        method = getattr(face, name)
        shown = pydoc.render_doc(method, renderer=pydoc.plaintext)
        assert f"{name}(self" in shown
        assert "Call[" not in shown
        assert "Generator[" not in shown
        assert (inspect.getdoc(method) or "").splitlines()[0] in shown
        assert f"def {name}(" in inspect.getsource(method)


def test_help_of_the_client_shows_what_a_method_takes_and_returns() -> None:
    shown = pydoc.render_doc(Client, renderer=pydoc.plaintext)
    assert "cancel_scheduled(self, entry_id: int) -> bool" in shown
    assert "maint(self) -> int" in shown
    shown = pydoc.render_doc(AsyncClient, renderer=pydoc.plaintext)
    assert "async cancel_scheduled(self, entry_id: int) -> bool" in shown


def test_the_examples_of_the_page_run_one_after_another(database_url: str) -> None:
    use_django(database_url)
    mails: list[str] = []
    shipped: list[int] = []

    engine_url = sqlalchemy_url(database_url)
    engine = sa.create_engine(engine_url)
    values: dict[str, Any] = {
        "__name__": "example",
        "asyncio": asyncio,
        "url": database_url,
        "engine": engine,
        "async_engine": create_async_engine(engine_url, poolclass=sa.NullPool),
        "send_mail": mails.append,
        "ship": lambda order: shipped.append(order["id"]),
    }
    with connect(database_url) as db:
        db.execute("create table orders (id int)")
        db.execute("create table paid (id int)")
        for block in blocks("client.md"):
            run(block, values, lambda consumer: has_nothing_to_do(consumer, database_url))
            if db.rows("select from pgque.queue"):
                db.tick("orders")
        orders = [2, 3, 4, 5, 2002]
        assert db.rows("select id from orders order by id") == [(id,) for id in orders]
        paid = [2, 3, 4, 5, 7, 9]
        assert db.rows("select id from paid order by id") == [(id,) for id in paid]
    django.db.connections["default"].close()
    engine.dispose()
    assert mails == ["ada@example.com"]
    assert sorted(shipped) == [1, *paid]

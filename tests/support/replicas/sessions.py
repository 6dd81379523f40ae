"""Sessions that stay open for the length of a test: each new one compiles the queue's functions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from pgque_dagster.client import Client, ConnectionFailed
from pgque_dagster.client.operation import Call

# Connections to the databases of a test. A new one costs as much as a small batch.
_KEPT: dict[str, psycopg.Connection[Any]] = {}
_CLIENTS: dict[str, Client] = {}


def execute(url: str, script: str) -> psycopg.Cursor[Any]:
    """Runs a script in a session that has no settings of an earlier one."""
    db = _KEPT.pop(url, None)
    try:
        if db is not None:
            db.execute("reset all")
    except psycopg.OperationalError:  # It was terminated.
        db = None
    db = db or psycopg.connect(url, autocommit=True)
    try:
        cursor = db.execute(script.encode())
    except BaseException:
        db.close()
        raise
    _KEPT[url] = db
    return cursor


@contextmanager
def kept_client(url: str) -> Iterator[Client]:
    """A client that stays open, unless the block fails. A block within the block has another."""
    client = _CLIENTS.pop(url, None)
    try:
        if client is not None:
            client.run(Call("select 1", (), lambda _: None))
    except ConnectionFailed:  # It was terminated.
        client = None
    if client is None:
        client = Client(url)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _CLIENTS[url] = client


def close_kept() -> None:
    while _KEPT:
        _KEPT.popitem()[1].close()
    while _CLIENTS:
        _CLIENTS.popitem()[1].close()

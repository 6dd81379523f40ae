"""Opens connections, each statement a transaction of its own."""

from typing import Any

import psycopg

from .errors import ConnectionFailed, translated


def connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Connects to a database.

    Raises:
        ConnectionFailed: if the server cannot be reached or refuses, or the URL is malformed.
    """
    try:
        with translated():
            return psycopg.connect(url, autocommit=True)
    except psycopg.ProgrammingError as error:
        raise ConnectionFailed(
            f"the connection string is malformed: {str(error).strip()}",
            "Write it as postgresql://user@host:port/database, or host=… dbname=….",
        ) from error

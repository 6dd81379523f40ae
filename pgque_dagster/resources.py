"""One place for the connection, for installing the schema and for the queues that must exist."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import dagster as dg
from pydantic import Field, PrivateAttr

from . import installer
from .client import Client, ConsumerNotFound
from .embedded import EmbeddedPostgres

InstallPolicy = Literal["never", "if_missing", "upgrade"]


class PgqueResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The queue's database.

    Example:
        .. code-block:: python

            PgqueResource(url=dg.EnvVar("PGQUE_URL"), queues=["orders"])
    """

    url: str | None = Field(
        default=None,
        description="libpq URI or connection string; without it the embedded PostgreSQL of the "
        "project folder is started.",
    )
    install: InstallPolicy = Field(
        default="if_missing",
        description="Whether to install the schema: never, if it is missing, or also to upgrade an "
        "older one.",
    )
    queues: list[str] = Field(
        default_factory=list, description="Queues to create where they are missing."
    )

    _ready_url: str | None = PrivateAttr(default=None)

    def database_url(self) -> str:
        """Returns the URL of the database, with the schema installed and the queues there.

        Raises:
            PgqueError: if the database cannot be reached or the schema cannot be installed.
        """
        if self._ready_url is None:
            url = self.url or _embedded_server(os.environ.get("PGQUE_HOME"), Path.cwd()).url
            self._install(url)
            self._ready_url = url
        return self._ready_url

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Opens a client for the time of the block.

        Yields:
            The client.
        """
        with Client(self.database_url()) as client:
            yield client

    def ensure_consumer(self, client: Client, queue: str, consumer: str) -> None:
        """Registers a consumer at the last tick, if it is not registered.

        Raises:
            QueueNotFound: if there is no such queue.
        """
        try:
            client.lease_info(queue, consumer)
        except ConsumerNotFound:
            client.register_consumer(queue, consumer)

    def _install(self, url: str) -> None:
        if self.install == "if_missing":
            installer.install_if_missing(url)
        elif self.install == "upgrade":
            installer.install(url)
        if self.queues:
            with Client(url) as client:
                for queue in self.queues:
                    client.create_queue(queue)


@cache
def _embedded_server(home: str | None, folder: Path) -> EmbeddedPostgres:
    """Holds the folder's server until this process ends: the last one to leave stops it."""
    return EmbeddedPostgres().start()

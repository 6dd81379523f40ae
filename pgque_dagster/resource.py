"""One place for the connection, for installing the schema and for what must exist in it."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from . import installer
from .client import Client, HealthCheck
from .client.pool import ClientPool
from .embedded import EmbeddedPostgres
from .registration import ensure_consumer, ensure_queue, ensure_scheduled

InstallPolicy = Literal["never", "if_missing", "upgrade"]
TickingPolicy = Literal["pg_cron", "external", "sensor"]

# How long a database that was found in order is taken to be so.
_TRUSTED_SECONDS = 60.0

_prepared: dict[str, float] = {}
_preparing = threading.Lock()


class PgqueResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The queue's database.

    Pass a URL with a password as `EnvVar`: a plain text is shown among the resource's settings.

    Example:
        .. code-block:: python

            PgqueResource(
                url=dg.EnvVar("PGQUE_URL"),
                queues=["orders"],
                queue_options={"orders": {"ticker_max_lag": "1 second"}},
                consumers={"orders": ["revenue"]},
            )
    """

    # What does not fit is named by its field alone: the value may be a URL with a password.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: str | None = Field(
        default=None,
        repr=False,
        description="libpq URI or connection string; without it the embedded PostgreSQL of the "
        "project folder is started.",
    )
    executors_url_env: str | None = Field(
        default=None,
        description="Environment variable in which Spark's executors find the URL, which then is "
        "in no plan; without it and executors_url_file they are told the URL.",
    )
    executors_url_file: str | None = Field(
        default=None, description="The same as a file that each of their hosts has."
    )
    install: InstallPolicy = Field(
        default="if_missing",
        description="Whether to install the schema: never, if it is missing, or also to upgrade an "
        "older one.",
    )
    ticking: TickingPolicy = Field(
        default="external",
        description="Who ticks and maintains: pg_cron of this database, whose jobs are made; "
        "something external such as `pgque ticker`; or the sensor of build_pgque_ticker_sensor.",
    )
    queues: list[str] = Field(
        default_factory=list, description="Queues to create where they are missing."
    )
    queue_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Parameters of queues, by the queue's name, such as ticker_max_lag. They are "
        "set on a queue that exists, too.",
    )
    consumers: dict[str, list[str]] = Field(
        default_factory=dict,
        description="Consumers to register at the last tick where they are missing, by queue.",
    )
    pool_size: int = Field(
        default=4, description="How many connections a process keeps open while it has no use."
    )

    def database_url(self) -> str:
        """Returns the URL of the database, with the schema installed and all that is declared.

        What exists as it is declared is only looked at, for which pgque_reader is enough.

        Raises:
            PgqueError: if the database cannot be reached or the schema cannot be installed.
            PermissionDenied: if something is missing that the role may not make; the message says
                what an administrator runs.
            OlderInstalled: if the schema is older than this package and may not be upgraded.
            NewerInstalled: if the schema is newer than this package.
        """
        url = self.url or _embedded_server(os.environ.get("PGQUE_HOME"), Path.cwd()).url
        declared = repr(
            (url, self.install, self.ticking, self.queues, self.queue_options, self.consumers)
        )
        with _preparing:
            if time.monotonic() >= _prepared.get(declared, 0.0):
                self._prepare(url)
                _prepared[declared] = time.monotonic() + _TRUSTED_SECONDS
        return url

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Lends a client for the time of the block, on a connection that is used again.

        Yields:
            The client.

        Raises:
            PgqueError: as for `database_url`.
        """
        with _pool(self.database_url(), self.pool_size, os.getpid()).client() as client:
            yield client

    def health(self) -> list[HealthCheck]:
        """Returns all checks of the database and of each queue, with what to do.

        Raises:
            ConnectionFailed: if the database cannot be reached.
        """
        with self.client() as client:
            return client.health()

    def _prepare(self, url: str) -> None:
        if self.install == "if_missing":
            installer.install_if_missing(url)
        elif self.install == "upgrade":
            installer.upgrade(url)
        installer.check_version(url)
        with Client(url) as client:
            for queue in dict.fromkeys([*self.queues, *self.queue_options]):
                ensure_queue(client, queue, self.queue_options.get(queue, {}))
            for queue, consumers in self.consumers.items():
                for consumer in consumers:
                    ensure_consumer(client, queue, consumer)
            if self.ticking == "pg_cron":
                ensure_scheduled(client)


@cache
def _pool(url: str, size: int, process: int) -> ClientPool:
    """The pool of a database in a process: after a fork, the child must not use the parent's."""
    return ClientPool(url, size)


@cache
def _embedded_server(home: str | None, folder: Path) -> EmbeddedPostgres:
    """Holds the folder's server until this process ends: the last one to leave stops it."""
    return EmbeddedPostgres().start()

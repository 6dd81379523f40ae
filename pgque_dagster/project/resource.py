"""`PgqueResource`: the connection, the installation of the schema, and its declared content."""

import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import dagster as dg
from pydantic import ConfigDict, Field

from .. import installer
from ..client import Client, ConnectionFailed
from .database import DEFAULT, Database
from .deployment import deployment_name
from .registration import addon_of, ensure_queue

if TYPE_CHECKING:
    from ..embedded import EmbeddedPostgres

InstallPolicy = Literal["never", "if_missing", "upgrade"]
TickingPolicy = Literal["external", "sensor"]

# How long a process relies on its last check of the declared content.
_TRUSTED_SECONDS = 60.0

_prepared: dict[str, float] = {}
# A lock for each, so that none waits for a database that does not answer but its own.
_preparing: dict[str, threading.Lock] = {}


class PgqueResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A database with queues: the default one, if its key in the resources is `pgque`.

    Pass a URL with a password as `EnvVar`, because the resource's settings show a plain text.

    Example:
        .. code-block:: python

            PgqueResource(
                url=dg.EnvVar("PGQUE_URL"),
                queues=["orders"],
                queue_options={"orders": {"ticker_max_lag": "1 second"}},
            )
    """

    # Validation errors must not show values, because one may be a URL with a password.
    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: str | None = Field(
        default=None,
        repr=False,
        description="libpq URI or connection string. If left out, the embedded PostgreSQL of the "
        "project folder is started.",
    )
    executors_url_env: str | None = Field(
        default=None,
        description="Environment variable in which Spark's executors find the URL, so that it is "
        "in no query plan. Without it and executors_url_file, the plan contains the URL.",
    )
    executors_url_file: str | None = Field(
        default=None, description="A file with the URL, on each host of the executors."
    )
    install: InstallPolicy = Field(
        default="if_missing",
        description="Whether to install the schema: never, if_missing, or upgrade an older one "
        "too.",
    )
    addons: list[str] = Field(
        default_factory=list,
        description="Add-ons to install with the schema: pgq, postgremq, qgres.",
    )
    ticking: TickingPolicy = Field(
        default="external",
        description="Who ticks and maintains: something external, such as `pgque ticker` or the "
        "pg_cron jobs that `select pgque.start()` creates; or the sensors of this package, with "
        "the one of build_pgque_ticker_sensor.",
    )
    queues: list[str] = Field(
        default_factory=list,
        description="Queues to create if they are missing. `postgremq.<topic>` and `qgres.<name>` "
        "log a topic or a Serial Publisher of an add-on, which is installed and created, too: each "
        "message or entry is also an event of that queue.",
    )
    queue_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Parameters of queues, by the queue's name, such as ticker_max_lag. They are "
        "also set on existing queues.",
    )
    deployment: str | None = Field(
        default=None,
        description="Name of this deployment of Dagster. A consumer belongs to the deployment that "
        "consumes first; others are refused. By default the name in Dagster+, or an id of the "
        "instance. The embedded PostgreSQL belongs to its folder, so it refuses no deployment.",
    )

    def __init__(self, **data: Any) -> None:
        """Keeps only the name of an EnvVar; `database_url` reads it.

        If Dagster read a variable that is not set, each evaluation of a sensor would write a page
        of traceback.
        """
        if isinstance(url := data.get("url"), dg.EnvVar):
            data["url"] = f"${url.env_var_name}"
        super().__init__(**data)

    def database_url(self) -> str:
        """Returns the URL, after installing the schema and creating the declared content.

        Reads only, with the rights of pgque_reader, if everything already exists as declared.

        Raises:
            PgqueError: if the variable of the URL is not set, the database cannot be reached or
                the schema cannot be installed.
            PermissionDenied: if something is missing that the role may not create; the message has
                the statement that an administrator runs.
            OlderInstalled: if the schema is older than this package and may not be upgraded.
            NewerInstalled: if the schema is newer than this package.
        """
        url = _read(self.url) or _embedded_server(os.environ.get("PGQUE_HOME"), Path.cwd()).url
        declared = repr(
            (url, self.install, self.addons, self.ticking, self.queues, self.queue_options)
        )
        with _preparing.setdefault(declared, threading.Lock()):
            if time.monotonic() >= _prepared.get(declared, 0.0):
                self._prepare(url)
                _prepared[declared] = time.monotonic() + _TRUSTED_SECONDS
        return url

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Connects a client while the block runs.

        Yields:
            The client.

        Raises:
            PgqueError: as for `database_url`.
        """
        with Client(self.database_url()) as client:
            yield client

    def deployment_of(self, instance: dg.DagsterInstance) -> str | None:
        """Returns the deployment for which an instance consumes; None to refuse no deployment."""
        if self.deployment is not None:
            return self.deployment
        return None if self.url is None else deployment_name(instance)

    def _prepare(self, url: str) -> None:
        queues = list(dict.fromkeys([*self.queues, *self.queue_options]))
        addons = list(dict.fromkeys([*self.addons, *filter(None, map(addon_of, queues))]))
        if self.install == "if_missing":
            installer.install_if_missing(url, addons)
        elif self.install == "upgrade":
            installer.upgrade(url, addons)
        installer.check_version(url, addons)
        with Client(url) as client:
            for queue in queues:
                ensure_queue(client, queue, self.queue_options.get(queue, {}))


def _read(url: str | None) -> str | None:
    """Returns a URL, or the value of its variable."""
    if url is None or not url.startswith("$"):
        return url
    name = url.removeprefix("$")
    if not (value := os.environ.get(name)):
        raise ConnectionFailed(
            f"the environment variable {name} is empty or not set",
            "Set it to the URL of the database, such as postgresql://user@host:5432/database, "
            "and start Dagster again.",
        )
    return value


def takes_resource(database: Database) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for functions to which Dagster passes a database's PgqueResource.

    Their parameter is `pgque`. Dagster finds a resource by the name of the parameter, so it sees a
    parameter with the name of the database.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if database.name == DEFAULT:
            return function

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **{DEFAULT: kwargs.pop(database.name)}, **kwargs)

        parameters = [
            each.replace(name=database.name) if each.name == DEFAULT else each
            for each in inspect.signature(function).parameters.values()
        ]
        # Without the return type: Dagster takes the Iterator of a function that is not a generator
        # for a single output.
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in parameters}
        return call

    return decorate


def takes_resources(
    databases: Sequence[str],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator for functions that get the PgqueResources of several databases.

    They take `context`, and the resources by database name. Dagster sees one parameter for
    each of them.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(context: Any, **resources: Any) -> Any:
            return function(context, resources)

        first, _ = inspect.signature(function).parameters.values()
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        others = [inspect.Parameter(name, kind, annotation=PgqueResource) for name in databases]
        call.__signature__ = inspect.Signature([first, *others])  # type: ignore[attr-defined]
        call.__annotations__ = {each.name: each.annotation for each in (first, *others)}
        return call

    return decorate


@cache
def _embedded_server(home: str | None, folder: Path) -> "EmbeddedPostgres":
    """Starts the folder's server for this process; the last process that uses it stops it."""
    # Imported late, because users with their own server do not need it.
    from ..embedded import EmbeddedPostgres

    return EmbeddedPostgres().start()

"""Where the database is, for the hosts that read: told outright, or to be looked up there."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.utils import is_remote

from ..client.connection import parsed
from ..client.errors import InvalidArgument


@dataclass(frozen=True)
class DatabaseAddress:
    """A database URL, or where each host finds it. Only what is written here travels to executors.

    A host takes the environment variable if it is set there, else the file if it is there, else
    the URL. So a secret can stay out of plans: name a variable or a file that all hosts have.

    Attributes:
        url: libpq URI or connection string. Spark redacts options with such a name.
        url_env: name of the environment variable that holds one.
        url_file: path of the file that holds one.
    """

    url: str | None = field(default=None, repr=False)
    url_env: str | None = None
    url_file: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "DatabaseAddress | None":
        """Reads Spark's options; None when they give none of the three."""
        address = cls(*(options.get(name) or None for name in ("url", "url_env", "url_file")))
        return address if address.options() else None

    def options(self) -> dict[str, str]:
        """Returns the address as Spark's options."""
        given = {"url": self.url, "url_env": self.url_env, "url_file": self.url_file}
        return {name: value for name, value in given.items() if value}

    def check_shown(self) -> None:
        """Refuses a password where Spark would show it.

        A Connect server shows a query's options, whatever their names, on its pages and in its
        event log.

        Raises:
            InvalidArgument: if the URL has a password, and sessions are of Spark Connect.
        """
        given = parsed(self.url) if self.url and is_remote() else None
        if given and given.get("password"):
            raise InvalidArgument(
                "Spark Connect would show the password in the database's URL",
                "Pass address=DatabaseAddress(url_env=…) or (url_file=…), which the executors look"
                " up; for assets, executors_url_env or executors_url_file of PgqueResource.",
            )

    def resolve(self) -> str:
        """Returns the URL that counts on this host.

        Raises:
            InvalidArgument: if there is none here.
        """
        missing = []
        if self.url_env:
            if url := os.environ.get(self.url_env, "").strip():
                return url
            missing.append(f"the environment variable {self.url_env} is not set")
        if self.url_file:
            try:
                if url := Path(self.url_file).read_text().strip():
                    return url
                missing.append(f"the file {self.url_file} is empty")
            except OSError as error:
                missing.append(f"the file {self.url_file} cannot be read ({error.strerror})")
        if self.url:
            return self.url
        raise InvalidArgument(
            f"host {socket.gethostname()} has no database URL: {' and '.join(missing)}",
            "Driver and executors each need it: set the variable where executors start, or mount "
            "the file (docs/spark.md).",
        )

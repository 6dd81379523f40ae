"""The address of the database for Spark's hosts: a URL, or where each host finds the URL."""

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
    """A database URL, or the name of a variable or file that holds it on each host.

    A host uses the environment variable if it is set, else the file if it exists, else the URL.
    Executors get only these attributes. To keep a password out of query plans, name a variable or
    a file that all hosts have.

    Attributes:
        url: libpq URI or connection string. Spark redacts options of this name.
        url_env: name of an environment variable that holds the URL.
        url_file: path of a file that holds the URL.
    """

    url: str | None = field(default=None, repr=False)
    url_env: str | None = None
    url_file: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "DatabaseAddress | None":
        """Reads Spark's options; returns None if they contain no address."""
        address = cls(*(options.get(name) or None for name in ("url", "url_env", "url_file")))
        return address if address.options() else None

    def options(self) -> dict[str, str]:
        """Returns the address as Spark's options."""
        given = {"url": self.url, "url_env": self.url_env, "url_file": self.url_file}
        return {name: value for name, value in given.items() if value}

    def check_shown(self) -> None:
        """Refuses a URL with a password if Spark would show it.

        A Spark Connect server shows all options of a query on its pages and in its event log.

        Raises:
            InvalidArgument: if the URL has a password and this process uses Spark Connect.
        """
        given = parsed(self.url) if self.url and is_remote() else None
        if given and given.get("password"):
            raise InvalidArgument(
                "Spark Connect would show the password in the database's URL",
                "Pass address=DatabaseAddress(url_env=…) or (url_file=…), which the executors look"
                " up; for assets, executors_url_env or executors_url_file of PgqueResource.",
            )

    def resolve(self) -> str:
        """Returns the URL to use on this host.

        Raises:
            InvalidArgument: if this host has no URL.
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

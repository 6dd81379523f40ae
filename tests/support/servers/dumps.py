"""Dumps of a database, and clusters into which they are restored."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import new_server
from tests.support.queues.sql import Connection, connect
from tests.support.servers.databases import empty_database

Restore = Callable[..., Connection]


@contextmanager
def new_cluster(*scripts: bytes) -> Iterator[Any]:
    """A cluster with the roles that these scripts make, where few transaction ids are used."""
    with new_server() as server:
        with connect(server.url) as db:
            for script in scripts:
                db.execute(script)
        yield server


def use_ids(db: Connection) -> None:
    """Brings the cluster far ahead of a new one."""
    db.execute(
        "do $$ begin for i in 1..3000 loop perform pg_current_xact_id(); commit; end loop; end $$"
    )


def dump(server: Any, url: str, file: Path, *options: str) -> None:
    command = [server.binary("pg_dump"), "--format=custom", f"--file={file}", *options, url]
    subprocess.run(command, check=True)


def restore(server: Any, file: Path, url: str, *options: str) -> None:
    command = [server.binary("pg_restore"), "--exit-on-error", *options, f"--dbname={url}", file]
    subprocess.run(command, check=True)


@contextmanager
def restoring(server: Any, url: str, cluster: Any, folder: Path) -> Iterator[Restore]:
    """Dumps a database, restores it into a cluster, and connects to the result."""
    with ExitStack() as stack:

        def run(*options: str, into: Any = cluster) -> Connection:
            dump(server, url, folder / "dump", *options)
            restored = stack.enter_context(empty_database(into))
            restore(server, folder / "dump", restored)
            return stack.enter_context(connect(restored))

        yield run

"""PgBouncer in front of a server, which hands connections out for one transaction each."""

import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from harness.processes import free_port
from tests.support.runner.waiting import wait_until

SETTINGS = """\
[databases]
{name} = {target}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
"""


@contextmanager
def pooler(url: str) -> Iterator[str]:
    """Yields the URL of the same database behind a pooler with two connections."""
    target = conninfo_to_dict(url)
    port = free_port()
    parts = " ".join(f"{key}={value}" for key, value in target.items())
    with tempfile.TemporaryDirectory() as folder:  # pytest closes its folders to other users
        file = Path(folder) / "pgbouncer.ini"
        file.write_text(SETTINGS.format(name=target["dbname"], target=parts, port=port))
        Path(folder).chmod(0o755)
        # It refuses to run as root, and the server's socket is its user's.
        owner = Path(str(target["host"])).owner()
        as_user = (f"--user={owner}",) if os.geteuid() == 0 else ()
        with subprocess.Popen(["pgbouncer", "--quiet", *as_user, file]) as process:
            try:
                wait_until(lambda: answers(port) or process.poll() is not None)
                yield f"postgresql://any@127.0.0.1:{port}/{target['dbname']}"
            finally:
                process.kill()


def answers(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0

"""The command `pgque spark-server` as a process, whose Spark tests kill."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_END_SECONDS = 60.0


class SparkServer:
    """A running `pgque spark-server`.

    Attributes:
        url: for `spark.remote`. The server may not listen there yet.
        process_id: of the command.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        self.url = url
        self.process_id = process.pid

    def kill_spark(self) -> None:
        """Kills the JVM, which the command starts again."""
        children = Path(f"/proc/{self.process_id}/task/{self.process_id}/children")
        (jvm,) = children.read_text().split()
        os.kill(int(jvm), signal.SIGKILL)


@contextmanager
def spark_server(folder: Path, database_url: str) -> Iterator[SparkServer]:
    """Runs a server that has a database, with its log in a folder, while the block runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        *(sys.executable, "-m", "pgque_dagster.cli", "spark-server", "--port", str(port)),
        *("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2"),
    ]
    with (folder / "spark-server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PGQUE_URL": database_url},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield SparkServer(process, f"sc://localhost:{port}")
    finally:
        process.terminate()
        process.wait(_END_SECONDS)

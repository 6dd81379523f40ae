"""`pgque spark-server`: a Spark Connect server for runs and workers."""

import signal
from importlib import import_module
from importlib.util import find_spec
from types import FrameType

import click

from ..database import Database, pass_database
from ..examples import examples


def _settings(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    for text in given:
        if not text.partition("=")[0] or "=" not in text:
            raise click.BadParameter(f"{text!r} is not KEY=VALUE.")
    return {key: value for key, _, value in (text.partition("=") for text in given)}


@click.command(
    epilog=examples(
        "pgque spark-server",
        "pgque spark-server --memory 4g --conf spark.sql.shuffle.partitions=8",
    ),
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=15002,
    show_default=True,
    help="The port to listen on; 0 for a free one.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. Who reaches it runs code as the user of the server.",
)
@click.option("--master", default="local[*]", show_default=True, help="Where Spark computes.")
@click.option("--memory", metavar="SIZE", help="Memory of the JVM.  [default: Spark's, 1g]")
@click.option(
    "--conf",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_settings,
    help="A setting of Spark. Repeatable.",
)
@pass_database
def spark_server(
    database: Database, port: int, host: str, master: str, memory: str | None, conf: dict[str, str]
) -> None:
    """Run a Spark Connect server until Ctrl-C or SIGTERM, and start it again when it dies.

    It prints the URL for `spark.remote` in the settings of the Spark session. Sessions on it
    outlive runs, and runs need no JVM. If the command has a database (--url or PGQUE_URL), the
    server's Python finds it in the variable PGQUE_SECRET_URL, for `executors_url_env`.
    """
    # Imported by name: `cli` must not need Spark.
    server_module = import_module("pgque_dagster.spark.cluster.connect_server")
    if find_spec("grpc") is None:
        click.echo(
            "pgque: sessions on the server need gRPC, which is not installed here: "
            "pip install 'pgque-dagster[connect]'",
            err=True,
        )
    has_served = False

    def tell(url: str) -> None:
        nonlocal has_served
        if has_served:
            click.echo("pgque: serving again", err=True)
            return
        click.echo("pgque: serving Spark until Ctrl-C", err=True)
        click.echo(url)
        has_served = True

    server = server_module.ConnectServer(
        server_module.ServerOptions(host, port, master, memory, conf, database.named_url), tell
    )
    received: int | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = number
        server.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        click.echo("pgque: starting Spark", err=True)
        server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received == signal.SIGINT:
        raise KeyboardInterrupt

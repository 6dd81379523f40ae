"""`pgque metrics`: the figures of all queues for Prometheus and OpenTelemetry."""

import time
from datetime import timedelta
from functools import partial

import click

from ...client import PgqueError
from ...client.models import Metric
from .. import prometheus
from ..database import Database, pass_database
from ..errors import one_line, without_passwords
from ..otlp import Collector
from ..output import examples, show_rows, wants_json
from ..times import Age


@click.command(
    epilog=examples(
        "pgque metrics",
        "pgque metrics --port 9187",
        "pgque metrics --otlp http://collector:4318",
        "pgque metrics > /var/lib/node_exporter/pgque.prom",
    ),
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Serve http://HOST:PORT/metrics until Ctrl-C."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="With --port: the address to listen on."
)
@click.option("--otlp", metavar="URL", help="Push to a collector, by OTLP over HTTP, until Ctrl-C.")
@click.option(
    "--every", type=Age(), default="60s", show_default=True, help="With --otlp: how often."
)
@pass_database
def metrics(
    database: Database, port: int | None, host: str, otlp: str | None, every: timedelta
) -> None:
    """Print the figures of all queues and consumers for Prometheus, or serve or push them.

    While the database does not answer, pgque_up is served as 0, or pgque.up pushed.
    deploy/grafana/ has a dashboard and alert rules. The variables of OpenTelemetry's exporter apply
    to --otlp, such as OTEL_EXPORTER_OTLP_HEADERS.
    """
    if port is not None and otlp is not None:
        raise click.UsageError("Choose --port or --otlp; two processes can do both.")
    if otlp is not None:
        _push(database, Collector(otlp), every.total_seconds())
    elif port is not None:
        url = f"http://{host}:{port}/metrics"
        announce = partial(click.echo, f"pgque: serving {url} until Ctrl-C", err=True)
        prometheus.serve(partial(_read_or_tell, database), host, port, announce)
    elif wants_json():
        rows = [{**vars(metric), "labels": dict(metric.labels)} for metric in _read(database)]
        show_rows(rows, "")
    else:
        click.echo(prometheus.text_of(lambda: [_up(True), *_read(database)]), nl=False)


def _push(database: Database, collector: Collector, seconds: float) -> None:
    click.echo(f"pgque: pushing to {collector.url} every {seconds:g} s until Ctrl-C", err=True)
    while True:
        collector.push(_read_or_tell(database))
        time.sleep(seconds)


def _read(database: Database) -> list[Metric]:
    with database.client() as client:
        return client.metrics()


def _read_or_tell(database: Database) -> list[Metric]:
    """Returns the metrics, or prints why the database does not answer."""
    try:
        return [_up(True), *_read(database)]
    except PgqueError as problem:
        click.echo(f"pgque: {without_passwords(one_line(problem))}", err=True)
        return [_up(False)]


def _up(answers: bool) -> Metric:
    return Metric("pgque.up", "gauge", float(answers), {})

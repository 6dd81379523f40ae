"""`pgque metrics`: the figures of all queues for Prometheus."""

from functools import partial

import click

from ...client import PgqueError
from ...client.models import Metric
from .. import prometheus
from ..database import Database, pass_database
from ..errors import one_line, without_passwords
from ..output import examples, show_rows, wants_json


@click.command(
    epilog=examples(
        "pgque metrics",
        "pgque metrics --port 9187",
        "pgque metrics > /var/lib/node_exporter/pgque.prom",
    ),
)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="Serve http://HOST:PORT/metrics until Ctrl-C."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="With --port: the address to listen on."
)
@pass_database
def metrics(database: Database, port: int | None, host: str) -> None:
    """Print the figures of all queues and consumers for Prometheus, or serve them.

    While the database does not answer, pgque_up is served as 0. deploy/grafana/ has a dashboard,
    deploy/prometheus/ alert rules. A collector of OpenTelemetry reads the page by its receiver
    `prometheus`.
    """
    if port is not None:
        url = f"http://{host}:{port}/metrics"
        announce = partial(click.echo, f"pgque: serving {url} until Ctrl-C", err=True)
        prometheus.serve(partial(_read_or_tell, database), host, port, announce)
    elif wants_json():
        rows = [{**vars(metric), "labels": dict(metric.labels)} for metric in _read(database)]
        show_rows(rows, "")
    else:
        click.echo(prometheus.text_of(lambda: [_up(True), *_read(database)]), nl=False)


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

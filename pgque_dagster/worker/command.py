"""The command `pgque worker`, also available as `python -m pgque_dagster.worker.command`.

It is not in `cli/` with the other commands, because it needs Dagster and they do not.
"""

import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import get_args

import click
import dagster as dg

from ..cli.output import announce_if_slow, examples
from ..client import Limits
from ..client.ranges import DEFAULT_MAX_EVENTS
from ..project.consumers import AssetConsumer, consumers_of, consuming_among, parallel_problem
from ..project.resource import PgqueResource
from ..sensors.attempts import AttemptPolicy
from ..sensors.run_requests import BatchPolicy, OnExhausted
from ..spark.cluster.session import open_session
from .worker import Worker


def load_definitions(module: str, attribute: str) -> dg.Definitions:
    """Loads the Definitions of a module from an attribute, or from the function that it names.

    Raises:
        ClickException: if the module or attribute does not exist, or gives no Definitions.
    """
    # Add the current folder, as `dagster dev` does, so that code in it can be imported.
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise click.ClickException(f"module {module} cannot be loaded: {error}") from error
    except AttributeError as error:
        raise click.ClickException(
            f"module {module} has no attribute {attribute}: pass the name of its Definitions with "
            "--attribute"
        ) from error
    definitions = found if isinstance(found, dg.Definitions) else callable(found) and found()
    if not isinstance(definitions, dg.Definitions):
        raise click.ClickException(
            f"{module}.{attribute} is not a dagster.Definitions: pass the name of the module's "
            "Definitions with --attribute"
        )
    return definitions


def select_consumers(definitions: dg.Definitions, names: Sequence[str]) -> list[AssetConsumer]:
    """Returns the consumers of the assets, or the named ones among them.

    Args:
        definitions: with assets made by `@pgque_asset`.
        names: in the form queue/consumer; empty for all.

    Raises:
        ClickException: if there is no consumer, or none with one of the names.
    """
    keys = sorted(definitions.resolve_all_asset_keys(), key=lambda key: tuple(key.path))
    consumers = consumers_of(consuming_among(map(definitions.resolve_assets_def, keys)))
    by_name = {str(consumer): consumer for consumer in consumers}
    if not consumers:
        raise click.ClickException("the Definitions have no asset made by @pgque_asset")
    for name in names:
        if name not in by_name:
            raise click.ClickException(
                f"no asset consumes {name}: use one of {', '.join(sorted(by_name))}"
            )
    return [by_name[name] for name in dict.fromkeys(names or by_name)]


def refuse_values_in_memory(
    definitions: dg.Definitions, consumers: Sequence[AssetConsumer]
) -> None:
    """Refuses assets whose values would only be kept in this process's memory.

    For runs in this process, Dagster replaces its default IO manager by one in memory. The batch
    would be acked and its value lost.

    Args:
        definitions: the assets and resources.
        consumers: the consumers whose assets to check.

    Raises:
        ClickException: if there is such an asset.
    """
    served = {key for consumer in consumers for key in consumer.asset_keys}
    lost = []
    # The declared assets, because resolved ones have the default IO manager as their own resource.
    for asset in definitions.assets or ():
        if not isinstance(asset, dg.AssetsDefinition) or served.isdisjoint(asset.keys):
            continue
        resources = {**(definitions.resources or {}), **asset.resource_defs}
        for name, key in asset.keys_by_output_name.items():
            output = asset.op.output_def_named(name)
            if output.dagster_type.is_nothing:
                continue
            if _is_in_memory(resources.get(output.io_manager_key)):
                lost.append(f"asset {key.to_user_string()} (resource {output.io_manager_key!r})")
    if lost:
        raise click.ClickException(
            f"{', '.join(lost)}: the worker would keep the value in memory only, ack the batch and "
            "lose the value. Add an IO manager that stores each batch to the Definitions, such as "
            "ParquetBatchIOManager; or, if the function stores its results itself, annotate it "
            "with -> None"
        )


def _is_in_memory(manager: object) -> bool:
    """Whether values are kept in memory, by Dagster's in-memory IO manager or without any."""
    if manager is None or manager is dg.mem_io_manager:
        return True
    return isinstance(manager, dg.InMemoryIOManager)


@click.command(
    name="worker",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("pgque worker -m my_project.definitions"),
)
@click.option("-m", "--module", required=True, help="The module with the project's Definitions.")
@click.option(
    "-a", "--attribute", default="defs", show_default=True, help="Name of the Definitions in it."
)
@click.option(
    "-c",
    "--consumer",
    "names",
    multiple=True,
    metavar="QUEUE/CONSUMER",
    help="Serve only this consumer. May be given several times.  [default: all]",
)
@click.option("--min-events", type=click.IntRange(0), default=1, show_default=True)
@click.option("--max-events", type=click.IntRange(1), default=DEFAULT_MAX_EVENTS, show_default=True)
@click.option("--max-age", type=float, default=60.0, show_default=True, help="Seconds.")
@click.option("--max-attempts", type=click.IntRange(1), default=3, show_default=True)
@click.option("--backoff", type=float, default=10.0, show_default=True, help="Seconds.")
@click.option(
    "--on-exhausted", type=click.Choice(get_args(OnExhausted)), default="hold", show_default=True
)
@click.option(
    "--parallel-runs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many batches of one consumer may be in progress at a time, in all workers and "
    "sensors.",
)
@click.option(
    "--poll",
    type=float,
    default=5.0,
    show_default=True,
    help="Seconds between checks for batches when no NOTIFY arrives.",
)
@click.option(
    "--grace",
    type=float,
    default=60.0,
    show_default=True,
    help="Seconds to wait for the batch in progress when the worker is stopped.",
)
def main(
    module: str,
    attribute: str,
    names: tuple[str, ...],
    min_events: int,
    max_events: int,
    max_age: float,
    max_attempts: int,
    backoff: float,
    on_exhausted: OnExhausted,
    parallel_runs: int,
    poll: float,
    grace: float,
) -> None:
    """Run batches in this process as soon as they are due, each as a Dagster run.

    Each tick wakes the worker, and its Spark session stays warm. Runs are recorded in the instance
    of DAGSTER_HOME. The options have the same meaning as those of build_pgque_sensor. A sensor for
    the same assets may run at the same time. SIGTERM or Ctrl-C stops the worker after the batch in
    progress; a second signal releases the batch and ends the process at once.
    """
    logging.basicConfig(level=logging.WARNING, format="pgque worker: %(message)s")
    logging.getLogger("pgque").setLevel(logging.INFO)
    if "DAGSTER_HOME" not in os.environ:
        raise click.ClickException("set DAGSTER_HOME: runs are recorded in its instance")
    with announce_if_slow(f"loading {module}"):
        definitions = load_definitions(module, attribute)
    resource = (definitions.resources or {}).get("pgque")
    if not isinstance(resource, PgqueResource):
        raise click.ClickException(
            f"{module}.{attribute} has no PgqueResource: add it as the resource pgque"
        )
    policy = BatchPolicy(
        Limits(min_count=min_events, min_interval=timedelta(seconds=max_age), max_count=max_events),
        AttemptPolicy(max_attempts, timedelta(seconds=backoff)),
        on_exhausted,
        parallel_runs,
    )
    consumers = select_consumers(definitions, names)
    if problem := parallel_problem(consumers, parallel_runs):
        raise click.ClickException(problem)
    refuse_values_in_memory(definitions, consumers)
    job = definitions.resolve_implicit_global_asset_job_def()
    with (
        dg.DagsterInstance.get() as instance,
        dg.build_resources(_needed(job.resource_defs, "pgque", "pyspark"), instance) as made,
    ):
        start_spark(made.pyspark)
        worker = Worker(
            job,
            consumers,
            instance,
            made.pgque,
            policy,
            poll=timedelta(seconds=poll),
        )
        run_until_signal(worker, grace, f"serving {', '.join(map(str, consumers))} until Ctrl-C")


def start_spark(resource: object) -> None:
    """Starts the Spark session that all runs share, so that the first run is fast, too.

    Raises:
        ClickException: if Spark does not start.
    """
    try:
        with announce_if_slow("starting Spark"):
            open_session(resource)
    except Exception as error:
        raise click.ClickException(f"Spark does not start: {error}") from error


def _needed(
    offered: Mapping[str, dg.ResourceDefinition], *keys: str
) -> dict[str, dg.ResourceDefinition]:
    """Returns the resources with these keys, and those that they need."""
    needed: dict[str, dg.ResourceDefinition] = {}
    waiting = set(keys)
    while waiting:
        key = waiting.pop()
        needed[key] = offered[key]
        waiting |= set(offered[key].required_resource_keys) - set(needed)
    return needed


def run_until_signal(worker: Worker, grace: float, announcement: str) -> None:
    """Runs a worker until SIGTERM or SIGINT.

    The worker runs in its own thread, because in the main thread Dagster would let the first signal
    interrupt the batch in progress.

    Args:
        worker: the worker to run.
        grace: seconds to wait for the batch in progress. After them, or at a second signal, its
            lease is released and the process ends at once.
        announcement: printed on stderr once a signal stops the worker cleanly.

    Raises:
        Exception: the error that ended the worker.
    """
    signals: list[int] = []
    failure: list[BaseException] = []

    def stop(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        worker.stop()

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            failure.append(error)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    click.echo(announcement, err=True)
    thread = threading.Thread(target=run, name="pgque-worker", daemon=True)
    thread.start()
    waited = 0.0
    while thread.is_alive() and len(signals) < 2 and waited < grace:
        thread.join(0.2)
        waited += 0.2 if signals else 0.0
    if thread.is_alive():
        worker.release()
        click.echo("pgque worker: released the batch in progress", err=True)
        os._exit(1)
    if failure:
        raise failure[0]


if __name__ == "__main__":
    main()

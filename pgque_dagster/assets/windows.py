"""How a step computes a window of time, of the ticks that a queue retains.

A window is a partition. Its events are read as a range of ticks, and nothing is acked.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg

from .. import spark
from ..client import InvalidArgument
from ..client.window import Window
from ..project.resource import PgqueResource
from .consumption import Consumption
from .inputs import window_of
from .outputs import StepResult
from .step import Step, executors_address


def compute_window(
    consumption: Consumption,
    partitions: dg.TimeWindowPartitionsDefinition,
    leave_out_failed: bool,
    context: dg.AssetExecutionContext,
    resources: Mapping[str, PgqueResource],
    pyspark: Any,
    call: "Callable[[spark.SparkBatch], Any]",
) -> Iterator[StepResult]:
    """Computes the window of a run's partition in a step.

    Raises:
        InvalidArgument: if the run has several partitions, the window is not over, or its ticks are
            not all retained.
    """
    first, *others = keys = context.partition_keys
    if others:
        raise InvalidArgument(
            f"this run has {len(keys)} partitions, from {first} to {keys[-1]}, and a step "
            "stores one window",
            "Start a run for each partition. A backfill does so by default, and with "
            "BackfillPolicy.multi_run() also if other assets of the job have another policy.",
        )
    start, end = window_of(partitions, first)
    (pgque,) = resources.values()
    with pgque.client() as client:
        try:
            window = Window(
                client, consumption.queue, start, end, leave_out_failed=leave_out_failed
            )
        except InvalidArgument as error:
            raise InvalidArgument(f"partition {first}: {error.args[0]}", error.hint) from error
        address = executors_address(pgque, client.url)
        step = Step(context, client, address, consumption, pyspark, call)
        outputs = yield from step.compute(window)
        outputs.failed_checks()

"""Refuses steps whose events reach Dagster's event log only after the step.

A batch is acked after its materialization is recorded. Under an executor, the step's process
writes the event log itself, on whatever host it is, so the order holds. A step launcher
(`dg.StepLauncher`) gives the process an instance of its own, and the host records the events later,
or never if it dies.
"""

import dagster as dg

from ..client import InvalidArgument


def refuse_unrecorded(context: dg.AssetExecutionContext) -> None:
    """Refuses a step whose process does not write the event log of its run.

    Raises:
        InvalidArgument: if the instance of this process does not know the run.
    """
    if context.instance.get_run_by_id(context.run.run_id) is not None:
        return
    raise InvalidArgument(
        f"the instance of Dagster in this process does not know run {context.run.run_id}: a step "
        "launcher executes the step and reports its events when it is over, so the batch would be "
        "acked before its materialization is recorded",
        f"Remove the step launcher from the resources of {context.op_def.name}. To run the step on "
        "another host, use an executor (Docker, Kubernetes, Celery); to run only Spark elsewhere, "
        "use a session on the cluster.",
    )

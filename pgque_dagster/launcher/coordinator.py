"""`QuickRunCoordinator`: starts queued runs sooner than Dagster's settings allow."""

from typing import Any

import dagster as dg

from .dagster_internals import call_before_sensors, queue_is_due, read_queue_often
from .launcher import WarmRunLauncher


class QuickRunCoordinator(dg.QueuedRunCoordinator):
    """Dagster's queue of runs, which the daemon reads every half second.

    It also reads it when a sensor has requested a run. With `WarmRunLauncher`, it reads it when a
    warm process becomes idle, and a daemon that starts prepares warm processes.

    Dagster's own interval is 5 seconds by default, and 1 second at least. All limits and settings
    work as with `dagster.QueuedRunCoordinator`, except that the interval cannot be set.

    Example:
        .. code-block:: yaml

            run_coordinator:
              module: pgque_dagster.launcher
              class: QuickRunCoordinator
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        call_before_sensors(_prepare)
        # Another process may queue a run, or execute one that ends.
        read_queue_often(0.5)

    @classmethod
    def config_type(cls) -> Any:
        """Returns the settings, as Dagster checks them."""
        settings: Any = super().config_type()
        return {
            name: field for name, field in settings.items() if name != "dequeue_interval_seconds"
        }

    @property
    def dequeue_interval_seconds(self) -> int:
        """How long the daemon waits after it has read the queue: it waits before."""
        return 0

    def submit_run(self, context: Any) -> dg.DagsterRun:
        """Puts a run into the queue."""
        run = super().submit_run(context)
        queue_is_due()
        return run


def _prepare(workspace: Any) -> None:
    launcher = workspace.instance.run_launcher
    if isinstance(launcher, WarmRunLauncher):
        launcher.prepare(workspace)

"""`QuickRunCoordinator`: starts queued runs sooner than Dagster's settings allow."""

from typing import Any

import dagster as dg

from .dagster_internals import call_before_sensors
from .launcher import WarmRunLauncher

# Dagster's daemon waits in steps of this length, so a shorter interval has no effect.
_INTERVAL_SECONDS = 0.5


class QuickRunCoordinator(dg.QueuedRunCoordinator):
    """Dagster's queue of runs, which the daemon reads every half second.

    With `WarmRunLauncher`, a daemon that starts prepares warm processes before their first runs.

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

    @classmethod
    def config_type(cls) -> Any:
        """Returns the settings, as Dagster checks them."""
        settings: Any = super().config_type()
        return {
            name: field for name, field in settings.items() if name != "dequeue_interval_seconds"
        }

    @property
    def dequeue_interval_seconds(self) -> float:  # type: ignore[override]
        """The seconds between two reads of the queue."""
        return _INTERVAL_SECONDS


def _prepare(workspace: Any) -> None:
    launcher = workspace.instance.run_launcher
    if isinstance(launcher, WarmRunLauncher):
        launcher.prepare(workspace)

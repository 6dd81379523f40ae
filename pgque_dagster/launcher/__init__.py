"""For `dagster.yaml`: a launcher that keeps processes with their Spark, and a quick run queue."""

from .coordinator import QuickRunCoordinator
from .launcher import WarmRunLauncher

__all__ = ["QuickRunCoordinator", "WarmRunLauncher"]

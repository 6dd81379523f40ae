"""A run launcher for `dagster.yaml` that keeps processes, with their imports and Spark sessions."""

from .launcher import WarmRunLauncher

__all__ = ["WarmRunLauncher"]

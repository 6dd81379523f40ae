"""Jobs that a person or a schedule starts."""

from .queue_jobs import build_pgque_jobs
from .table_jobs import build_table_maintenance_job

__all__ = ["build_pgque_jobs", "build_table_maintenance_job"]

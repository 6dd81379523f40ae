"""Jobs that a person or a schedule starts."""

from .queue_jobs import build_pgque_jobs
from .table_jobs import build_delta_maintenance_job, build_iceberg_maintenance_job

__all__ = ["build_delta_maintenance_job", "build_iceberg_maintenance_job", "build_pgque_jobs"]

"""Jobs that a person starts."""

from .queue_jobs import build_pgque_jobs

__all__ = ["build_pgque_jobs"]

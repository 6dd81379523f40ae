"""Jobs for operating a queue: replay, purge and export dead letters, pause and resume."""

from .queue_jobs import build_pgque_jobs

__all__ = ["build_pgque_jobs"]

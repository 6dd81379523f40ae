"""The worker, a process that runs batches as soon as they are due, and the command for it."""

from .worker import Worker

__all__ = ["Worker"]

"""The warm process that runs batches as they come, and the command that starts it."""

from .worker import Worker

__all__ = ["Worker"]

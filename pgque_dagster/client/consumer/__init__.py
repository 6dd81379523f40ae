"""Runs handlers on the events of a queue, and acks a batch once all its events are handled."""

from .consumer import Consumer
from .delivery import Delivery

__all__ = ["Consumer", "Delivery"]

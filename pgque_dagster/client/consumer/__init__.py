"""Runs handlers on the events of a queue, and acks each batch when all of it is handled."""

from .consumer import Consumer
from .delivery import Delivery

__all__ = ["Consumer", "Delivery"]

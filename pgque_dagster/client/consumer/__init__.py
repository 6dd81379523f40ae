"""Runs handlers on the events of a queue, and acks each batch when all of it is handled."""

from .consumer import Consumer
from .delivery import Delivery
from .errors import HandlerMissing, HandlerTimeout, TransactionEnded
from .handlers import RateLimit
from .health import ConsumerHealth

__all__ = [
    "Consumer",
    "ConsumerHealth",
    "Delivery",
    "HandlerMissing",
    "HandlerTimeout",
    "RateLimit",
    "TransactionEnded",
]

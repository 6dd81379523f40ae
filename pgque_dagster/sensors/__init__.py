"""The sensors: they request runs for batches, make ticks and observe queues."""

from .batch_schedule import build_pgque_schedule
from .batch_sensor import build_pgque_sensor
from .observation import build_pgque_observation_sensor
from .ticker_sensor import build_pgque_ticker_sensor

__all__ = [
    "build_pgque_observation_sensor",
    "build_pgque_schedule",
    "build_pgque_sensor",
    "build_pgque_ticker_sensor",
]

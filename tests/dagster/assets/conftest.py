"""The fixtures that the tests of this folder share."""

from tests.dagster.orders import manager, orders

__all__ = ["manager", "orders"]

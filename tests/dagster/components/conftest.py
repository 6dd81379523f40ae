"""The fixture that the tests of this folder share."""

from tests.dagster.orders import orders

__all__ = ["orders"]

"""The fixtures that the tests of this folder share."""

import dagster as dg
import pytest

from tests.dagster.assets.new_batches import Pair
from tests.dagster.orders import Orders, manager, orders

__all__ = ["manager", "orders"]


@pytest.fixture
def pair(orders: Orders, instance: dg.DagsterInstance) -> Pair:
    return Pair(orders, instance)

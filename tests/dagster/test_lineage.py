"""Lineage: producers, queues, dead letters, consumers; and the freshness policy from a lag."""

import dagster as dg
import pytest

from pgque_dagster import build_queue_assets, dead_letters_key, queue_key
from tests.support.dagster.assets import revenue


def test_producers_are_upstream_of_the_queue_and_consumers_downstream() -> None:
    table = dg.AssetSpec("orders_table")
    graph = dg.Definitions(
        assets=[
            *build_queue_assets(
                "orders",
                producers=[table, dg.AssetKey(["shop", "import"])],
                consumers=[revenue, "billing"],
            ),
            table,
            revenue,
        ],
        resources={"pgque": None, "pyspark": None},
    ).resolve_asset_graph()

    assert graph.get(queue_key("orders")).parent_keys == {
        dg.AssetKey("orders_table"),
        dg.AssetKey(["shop", "import"]),
    }
    assert graph.get(revenue.key).parent_keys == {queue_key("orders")}
    assert graph.get(dead_letters_key("orders")).parent_keys == {revenue.key}
    for key in (queue_key("orders"), dead_letters_key("orders")):
        # So that nobody misses a materialization.
        assert graph.get(key).is_observable
        assert not graph.get(key).is_materializable
    outside = dg.Definitions(
        assets=build_queue_assets("returns", consumers=["billing"]), resources={"pgque": None}
    ).resolve_asset_graph()
    assert outside.get(dead_letters_key("returns")).parent_keys == {queue_key("returns")}


def test_an_asset_that_consumes_another_queue_is_refused() -> None:
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="orders/revenue is not on queue re"):
        build_queue_assets("returns", consumers=[revenue])


def test_no_two_boxes_of_the_lineage_have_one_name() -> None:
    """Dagster's graph shows only the last part of each key."""
    table = dg.AssetSpec("orders")
    assets = [
        table,
        *build_queue_assets("orders", producers=[table]),
        *build_queue_assets("returns"),
    ]

    assert [asset.key.path[-1] for asset in assets] == [
        "orders",
        "orders_queue",
        "orders_dlq",
        "returns_queue",
        "returns_dlq",
    ]

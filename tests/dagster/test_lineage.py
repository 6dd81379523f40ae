"""Lineage: producers, queues, dead letters, consumers; and the freshness policy from a lag."""

import dagster as dg
import pytest

from pgque_dagster import (
    build_queue_assets,
    dead_letters_key,
    queue_key,
)
from tests.support.assets import revenue


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


def test_a_queue_says_what_it_is_who_consumes_it_and_what_to_do_when_it_is_red() -> None:
    queue, dead_letters = (
        next(iter(asset.specs))
        for asset in build_queue_assets("orders", consumers=["revenue", "billing"])
    )
    unnamed = next(iter(build_queue_assets("orders")[0].specs))

    assert "The pgque queue `orders`" in str(queue.description)
    assert "`revenue`, `billing`" in str(queue.description)
    assert "`pgque status orders`" in str(unnamed.description)
    assert "**When a check is red:** `what_to_do`" in str(queue.description)
    assert "Events of the queue `orders` that a consumer gave up" in str(dead_letters.description)
    for way in ("pgque_replay_dead_letters", "pgque resume orders"):
        assert f"`{way}`" in str(queue.description)
    for command in ("list", "replay", "purge"):
        assert f"`pgque dead-letters {command} orders`" in str(dead_letters.description)

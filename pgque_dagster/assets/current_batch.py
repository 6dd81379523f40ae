"""The current batch of a step, for the IO manager that stores its output.

Dagster passes an IO manager the output and its metadata, but a sink needs the claim itself.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import dagster as dg

from .. import spark
from ..client import InvalidArgument

_current: "dict[tuple[str, dg.AssetKey], spark.SparkBatch]" = {}


@contextmanager
def working_on(
    run_id: str, keys: Iterable[dg.AssetKey], batch: "spark.SparkBatch"
) -> Iterator[None]:
    """Makes the batch the current one of these assets while the block runs."""
    places = [(run_id, key) for key in keys]
    _current.update(dict.fromkeys(places, batch))
    try:
        yield
    finally:
        for place in places:
            _current.pop(place, None)


def current_batch(context: dg.OutputContext) -> "spark.SparkBatch":
    """Returns the batch from which an output is computed.

    Raises:
        InvalidArgument: if the output is not computed from a batch.
    """
    batch = _current.get((context.run_id, context.asset_key))
    if batch is None:
        raise InvalidArgument(
            f"{context.asset_key.to_user_string()} is not computed from a batch",
            "Use this IO manager only for assets made with @pgque_asset.",
        )
    return batch

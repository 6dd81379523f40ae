"""Finds the upstream batches that an asset has not read, from the asset's own materializations.

Each materialization of the asset records which materializations of the upstream asset it has read.
So a batch is delivered again after a failed run, or if it was stored again. The records are sets
and their union counts, so parallel runs may write them in any order.

A Dagster event may become visible after events with higher numbers. So a record has the numbers of
newer events one by one, and only the highest number of older events.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import dropwhile, islice, takewhile
from typing import Any

import dagster as dg

from ..client import InvalidArgument
from ..project.keys import BATCH_ID, BATCHES, QUEUE

# Within this time, Dagster's database shows an event.
_VISIBLE_AFTER = timedelta(minutes=10)
_PAGE = 100


def new_batches(context: dg.InputContext) -> frozenset[int]:
    """Returns the batches that no materialization of the step's assets records.

    The materializations that this step makes will record them.

    Raises:
        InvalidArgument: if the step makes none, or its output may replace the output of earlier
            batches; or if no materialization of the upstream asset is known.
    """
    upstream, instance = context.asset_key.to_user_string(), context.instance
    keys, name = _assets_of_step(context), f"{BATCHES}.{upstream}"
    had = [_had(instance, key, name) for key in keys]
    start = min(up_to for up_to, _ in had)
    wanted = dg.AssetRecordsFilter(context.asset_key, after_storage_id=start)
    records = list(materializations(instance, wanted, ascending=True))
    if not start and not records:
        raise InvalidArgument(
            f"this instance of Dagster has no materialization of {upstream}, so it does not know "
            "which batches are new",
            f"Materialize it first. If another instance does that, leave out {BATCHES}, for all.",
        )
    new = [
        each
        for each in records
        if any(each.storage_id > up_to and each.storage_id not in more for up_to, more in had)
    ]
    batches = frozenset(found for each in new if (found := batch_of(each)) is not None)
    before = time.time() - _VISIBLE_AFTER.total_seconds()
    older = [each.storage_id for each in takewhile(lambda each: each.timestamp < before, records)]
    end = max(older, default=start)
    record = {
        # Text, because Dagster's pages round large numbers.
        "new": [str(each) for each in sorted(batches)],
        "up_to": end,
        "more": [each.storage_id for each in records if each.storage_id > end],
    }
    for key in keys:
        context.step_context.add_asset_metadata({name: record}, key)
    context.log.info(f"{len(batches)} batches of {upstream} are new.")
    return batches


def batch_of(record: dg.EventLogRecord) -> int | None:
    """Returns the batch that a materialization stored, or None."""
    made = record.asset_materialization
    found = made.metadata.get(BATCH_ID) if made else None
    return int(str(found.value)) if found else None


def materializations(
    instance: dg.DagsterInstance,
    wanted: dg.AssetKey | dg.AssetRecordsFilter,
    *,
    ascending: bool = False,
) -> Iterator[dg.EventLogRecord]:
    """Yields the materializations of an asset, by default starting with the newest."""
    cursor, has_more = None, True
    while has_more:
        page = instance.fetch_materializations(wanted, _PAGE, cursor, ascending)
        yield from page.records
        cursor, has_more = page.cursor, page.has_more


def _had(instance: dg.DagsterInstance, key: dg.AssetKey, name: str) -> tuple[int, set[int]]:
    """Returns what an asset has read: all events up to a number, and later single events."""
    made = (each.asset_materialization for each in materializations(instance, key))
    # At most one page back from the newest record: older materializations may have none.
    recent = islice(dropwhile(lambda each: not each or name not in each.metadata, made), _PAGE)
    records: list[Any] = [
        each.metadata[name].value for each in recent if each and name in each.metadata
    ]
    up_to = max((each["up_to"] for each in records), default=0)
    return up_to, {number for each in records for number in each["more"]}


def _assets_of_step(context: dg.InputContext) -> list[dg.AssetKey]:
    """Returns the assets whose materializations in this step record what the step has read."""
    upstream, step = context.asset_key.to_user_string(), context.step_context
    assets = step.assets_def
    outputs = {
        name: key
        for name, key in (assets.keys_by_output_name if assets else {}).items()
        if name in step.selected_output_names
    }
    if (
        assets is None
        or not outputs
        or not isinstance(assets.node_def, dg.OpDefinition)
        or assets.partitions_def is not None
        or any(QUEUE in assets.metadata_by_key[key] for key in outputs.values())
    ):
        raise InvalidArgument(
            f'{step.op_def.name} cannot have {BATCHES}: "new" for {upstream}: it is for @dg.asset '
            "and @dg.multi_asset without partitions, whose materializations record what they had",
            f"Leave out {BATCHES}, for all batches or for those of the partition.",
        )
    for name, key in outputs.items():
        output = step.op_def.output_def_named(name)
        manager = None if output.dagster_type.is_nothing else output.io_manager_key
        if manager and not getattr(getattr(step.resources, manager), "batch_safe", False):
            raise InvalidArgument(
                f"the IO manager {manager} may replace what {key.to_user_string()} made of earlier "
                f"batches of {upstream} with its result for the new ones, and lose it",
                "Make the function store its result, replacing earlier rows of the same "
                "batch_id, and annotate it with -> None or -> MaterializeResult. If the IO manager "
                "does so, give it the attribute batch_safe = True.",
            )
    return list(outputs.values())

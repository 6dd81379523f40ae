"""Finds the unfinished runs of slots, so that a slot has one run at a time."""

from collections.abc import Mapping, Sequence

import dagster as dg

from ..client.calls.states import ConsumerState
from ..client.partitions import slot_name
from ..keys import ATTEMPT, BATCH_ID, CONSUMER, LINEAGE, QUEUE, SLOT
from .attempts import UNFINISHED


def unfinished_runs(
    instance: dg.DagsterInstance, states: Sequence[ConsumerState], lineage: str
) -> Mapping[tuple[str, str], list[dg.RunRecord]]:
    """Returns the unfinished runs of slots, by queue and name of the slot.

    A run is left out if another attempt at its batch was requested later: it had lost its lease by
    then, so it has died, although Dagster may record it as started for a long time.

    Args:
        instance: records the runs.
        states: of consumers with an open batch.
        lineage: of the database.
    """
    runs: dict[tuple[str, str], list[dg.RunRecord]] = {}
    slots = sorted({state.slot for state in states if state.slot is not None})
    if not slots:
        return runs
    tags: dict[str, str | list[str]] = {SLOT: slots, LINEAGE: lineage}
    found = instance.get_run_records(dg.RunsFilter(tags=tags, statuses=UNFINISHED))
    last = _last_attempts(instance, found, lineage)
    for record in found:
        of_run = record.dagster_run.tags
        if _attempt(record) >= last.get(of_run.get(BATCH_ID, ""), 0):
            name = slot_name(of_run.get(CONSUMER, ""), of_run[SLOT])
            runs.setdefault((of_run.get(QUEUE, ""), name), []).append(record)
    return runs


def _last_attempts(
    instance: dg.DagsterInstance, records: Sequence[dg.RunRecord], lineage: str
) -> Mapping[str, int]:
    """Returns the highest attempt that was requested for each batch of these runs."""
    last: dict[str, int] = {}
    batches = sorted({record.dagster_run.tags.get(BATCH_ID, "") for record in records})
    if not batches:
        return last
    for record in instance.get_run_records(
        dg.RunsFilter(tags={BATCH_ID: batches, LINEAGE: lineage})
    ):
        batch = record.dagster_run.tags[BATCH_ID]
        last[batch] = max(last.get(batch, 0), _attempt(record))
    return last


def _attempt(record: dg.RunRecord) -> int:
    number = record.dagster_run.tags.get(ATTEMPT, "")
    return int(number) if number.isdecimal() else 0

"""IO managers that store payloads in a table of the queue's database, to be asked in SQL."""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from tests.support.queues import connect, rows


def make_table(url: str) -> None:
    with connect(url) as db:
        db.execute("create table stored (asset text, batch_id bigint, payload text)")


def store(url: str, asset: str, batch_id: int, payloads: Sequence[str]) -> None:
    """Takes the place of what an earlier attempt at the batch stored."""
    with connect(url) as db, db.transaction():
        db.execute("delete from stored where asset = %s and batch_id = %s", (asset, batch_id))
        db.cursor().executemany(
            "insert into stored values (%s, %s, %s)",
            [(asset, batch_id, payload) for payload in payloads],
        )


def stored(url: str, asset: str) -> list[str]:
    with connect(url) as db:
        found = rows(db, "select payload from stored where asset = %s order by payload", asset)
    return [payload for (payload,) in found]


class TableIOManager(dg.IOManager):
    batch_safe = True

    def __init__(self, url: str) -> None:
        self._url = url

    def handle_output(self, context: dg.OutputContext, obj: Sequence[str]) -> Any:
        self._store(context, obj)

    def load_input(self, context: dg.InputContext) -> Any:
        raise NotImplementedError

    def _store(self, context: dg.OutputContext, obj: Sequence[str]) -> None:
        batch_id = int(str((context.output_metadata or {})["pgque/batch_id"].value))
        store(self._url, context.asset_key.to_user_string(), batch_id, obj)


class YieldingTableIOManager(TableIOManager):
    """Its `handle_output` is a generator, which does nothing until somebody iterates it."""

    def handle_output(self, context: dg.OutputContext, obj: Sequence[str]) -> Iterator[Any]:
        self._store(context, obj)
        context.log_event(dg.AssetObservation("table", metadata={"logged": len(obj)}))
        yield dg.AssetMaterialization("table", metadata={"payloads": len(obj)})

"""Delta tables, as somebody reads them who has only Delta's library."""

from typing import Any

from deltalake import DeltaTable


def rows(location: str) -> list[tuple[Any, ...]]:
    table = DeltaTable(location).to_pyarrow_table()
    return sorted(
        zip(*(table[name].to_pylist() for name in ("number", "name", "batch_id")), strict=True)
    )

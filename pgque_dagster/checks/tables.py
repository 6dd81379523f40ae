"""Rows in a check's metadata."""

from collections.abc import Iterable, Mapping

import dagster as dg

_TEXT_WIDTH = 200


def table(
    columns: Mapping[str, str], records: Iterable[tuple[str | float, ...]]
) -> dg.TableMetadataValue:
    """Makes a table.

    Args:
        columns: their types, such as `string` and `int`, by their names.
        records: the values, in the order of the columns.
    """
    return dg.MetadataValue.table(
        records=[dg.TableRecord(dict(zip(columns, record, strict=True))) for record in records],
        schema=dg.TableSchema(
            columns=[dg.TableColumn(name, type) for name, type in columns.items()]
        ),
    )


def shortened(text: str | None) -> str:
    """Returns a text as a cell shows it; none where there is none."""
    if text is None or len(text) <= _TEXT_WIDTH:
        return text or ""
    return f"{text[:_TEXT_WIDTH]}…"

"""Tables in a check's metadata."""

from collections.abc import Iterable, Mapping

import dagster as dg

_TEXT_WIDTH = 200


def table(
    columns: Mapping[str, str], records: Iterable[tuple[str | float, ...]]
) -> dg.TableMetadataValue:
    """Returns a table as metadata.

    Args:
        columns: the type of each column, such as `string` and `int`, by its name.
        records: the values, in the order of the columns.
    """
    return dg.MetadataValue.table(
        records=[dg.TableRecord(dict(zip(columns, record, strict=True))) for record in records],
        schema=dg.TableSchema(
            columns=[dg.TableColumn(name, type) for name, type in columns.items()]
        ),
    )


def shortened(text: str | None) -> str:
    """Returns a text cut to the width of a cell; empty for None."""
    if text is None or len(text) <= _TEXT_WIDTH:
        return text or ""
    return f"{text[:_TEXT_WIDTH]}…"

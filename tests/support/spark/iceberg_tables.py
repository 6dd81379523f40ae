"""Iceberg tables as others read them: pyiceberg, and DuckDB's extension."""

from functools import cache

import duckdb
import pyarrow as pa
from duckdb_extensions import import_extension
from pyiceberg.table import Table


def by_duckdb(query: str) -> pa.Table:
    """The result of a query of DuckDB that may read Iceberg and Avro files."""
    with _duckdb().cursor() as reader:
        reader.execute("set timezone = 'UTC'")
        return reader.execute(query).to_arrow_table()


def same_rows(table: Table) -> pa.Table:
    """The rows of a table in a directory, which both read alike."""
    rows = table.scan().to_arrow()
    columns = ", ".join(f'"{name}"' for name in rows.column_names)
    place = table.metadata_location.removeprefix("file://")
    others = by_duckdb(f"select {columns} from iceberg_scan('{place}')")
    assert _printed(others.cast(rows.schema)) == _printed(rows)
    return rows


def _printed(rows: pa.Table) -> list[str]:
    """The rows as sorted texts, because no NaN equals another."""
    return sorted(map(repr, rows.to_pylist()))


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    for name in ("avro", "iceberg"):
        import_extension(name)
    connection = duckdb.connect()
    connection.execute("load avro; load iceberg")
    return connection

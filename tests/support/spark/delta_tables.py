"""Delta tables as others read them: Delta's library, and DuckDB's extension."""

from collections.abc import Mapping
from functools import cache
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from duckdb_extensions import import_extension


def read_delta(table: DeltaTable) -> pa.Table:
    """The rows that Delta's library reads; `to_pyarrow_table` refuses deletion vectors."""
    found = pa.table(table.scan())
    # Views, which Arrow can neither sort nor take.
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return found.cast(pa.schema([(x.name, plain.get(x.type, x.type)) for x in found.schema]))


def read_delta_by_duckdb(location: str, version: int | None = None) -> pa.Table:
    """The rows that DuckDB reads in a directory."""
    at = "" if version is None else f", version => {version}"
    with _duckdb().cursor() as reader:
        reader.execute("set timezone = 'UTC'")
        return reader.execute(f"select * from delta_scan('{location}'{at})").to_arrow_table()


def same_rows(table: DeltaTable) -> pa.Table:
    """The rows of a table in a directory, which both read alike."""
    found, location = read_delta(table), unquote(table.table_uri.removeprefix("file://"))
    other = read_delta_by_duckdb(location)
    assert sorted(map(repr, map(_by_name, other.to_pylist()))) == sorted(
        map(repr, map(_by_name, found.to_pylist()))
    )
    return found


def _by_name(row: Mapping[str, object]) -> dict[str, object]:
    return dict(sorted(row.items()))


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    import_extension("delta")
    connection = duckdb.connect()
    connection.execute("load delta")
    return connection

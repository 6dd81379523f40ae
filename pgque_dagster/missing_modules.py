"""Names the extras of this package to install if a module is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

_OF_EXTRAS = frozenset(
    (
        "adbc_driver_manager",
        "adbc_driver_postgresql",
        "dagster",
        "dagster_pyspark",
        "msgspec",
        "pandas",
        "pyarrow",
        "pyspark",
    )
)


@contextmanager
def naming_extras(name: str, extras: str) -> Iterator[None]:
    """Says how to install what the block cannot import.

    Args:
        name: what the block imports, for the error.
        extras: those that have its modules, such as `spark,dagster`.

    Raises:
        ModuleNotFoundError: if a module of the extras, or any other one, is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_EXTRAS:
            raise
        raise ModuleNotFoundError(
            f"No module named '{error.name}', which {name} needs: "
            f"run `pip install 'pgque-dagster[{extras}]'`",
            name=error.name,
        ) from error

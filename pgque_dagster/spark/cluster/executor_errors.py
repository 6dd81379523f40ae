"""Recovers the package's own exception from Spark's error about an executor."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from ...client.errors import PgqueError, error_from, passes

# The last line of a Python traceback; Spark's error contains the traceback as text.
_RAISED = re.compile(r"^(?:.*: )?pgque_dagster\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_RAISED_BY_SERVER = re.compile(r"^(?:.*: )?psycopg\.(?:errors\.)?(\w+): (.+)$", re.MULTILINE)
_LACKING = re.compile(
    r"No module named '((pgque_dagster|psycopg|pyarrow|msgspec|adbc_driver_manager"
    r"|adbc_driver_postgresql)(?:\.[\w.]+)?)'"
)


class PackageMissing(PgqueError):
    """The Python of an executor or Connect server lacks this package or one of its dependencies."""


def executor_error(error: BaseException) -> PgqueError | None:
    """Finds the error of this package that caused a Spark error; None if it has another cause."""
    text = str(error)
    kinds = {kind.__name__: kind for kind in _kinds(PgqueError)}
    for name, message in _RAISED.findall(text):
        if name in kinds:
            return kinds[name](message)
    return _passing_error(text) or _missing_package(text)


@contextmanager
def clear_executor_errors() -> Iterator[None]:
    """Raises the executor's error instead of Spark's error about it.

    Raises:
        PgqueError: the subclass that the executor raised. Other errors are raised unchanged.
    """
    try:
        yield
    except Exception as error:
        cause = None if isinstance(error, PgqueError) else executor_error(error)
        if cause is None:
            raise
        # Not chained: Spark's error is a page long and has no further information.
        raise cause from None


def _passing_error(text: str) -> PgqueError | None:
    """Returns this package's error for a psycopg error in a traceback, if it is temporary."""
    for name, message in _RAISED_BY_SERVER.findall(text):
        kind = getattr(psycopg.errors, name, None)
        if isinstance(kind, type) and passes(cause := kind(message)):
            return error_from(cause)
    return None


def _missing_package(text: str) -> PackageMissing | None:
    lacking = _LACKING.search(text)
    if lacking is None:
        return None
    module, package = lacking.groups()
    way = (
        "ship it with pgque_dagster.spark.ship(spark)"
        if package == "pgque_dagster"
        else "ship an environment that has it"
    )
    return PackageMissing(
        f"the Python of Spark's executors has no module {module}",
        f"Install the driver's version of pgque-dagster[spark] there, or {way}: docs/spark.md.",
    )


def _kinds(kind: type[PgqueError]) -> Iterator[type[PgqueError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)

"""The errors of consumers that apply batches to a target."""

from ..errors import PgqueError


class TargetOutOfStep(PgqueError):
    """The batch does not follow the last one that the target applied. Nothing was applied."""


class TargetRefused(PgqueError):
    """The target refused a batch, or an event of it. Nothing was applied.

    `__cause__` is psycopg's own error.
    """

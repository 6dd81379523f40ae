"""The sink of Iceberg tables."""

from ..files.storage import needing_extra

with needing_extra("iceberg"):
    import pyiceberg.catalog  # noqa: F401

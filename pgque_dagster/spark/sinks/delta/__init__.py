"""The sink of Delta tables."""

from ..files.storage import needing_extra

with needing_extra("delta"):
    import deltalake  # noqa: F401

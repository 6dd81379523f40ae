"""An embedded PostgreSQL server for demos, tests and laptops."""

from .host import EmbeddedPostgresError
from .server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]

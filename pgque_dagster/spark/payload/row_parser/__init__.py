"""Reads the rows that triggers publish into typed Arrow columns: docs/triggers.md."""

from .parser import ChangeParser, MissingColumns, ParsedChanges

__all__ = ["ChangeParser", "MissingColumns", "ParsedChanges"]

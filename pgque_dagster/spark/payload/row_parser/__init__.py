"""Strict, typed reading of the rows that triggers publish, over Arrow: docs/triggers.md."""

from .parser import ChangeParser, MissingColumns, ParsedChanges

__all__ = ["ChangeParser", "MissingColumns", "ParsedChanges"]

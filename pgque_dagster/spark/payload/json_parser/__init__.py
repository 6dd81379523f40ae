"""Reads JSON payloads into typed Arrow columns, exactly or not at all: docs/payloads.md."""

from .parser import Parsed, PayloadParser

__all__ = ["Parsed", "PayloadParser"]

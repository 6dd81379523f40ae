"""Strict, typed reading of JSON payloads over Arrow: docs/payloads.md."""

from .parser import Parsed, PayloadParser

__all__ = ["Parsed", "PayloadParser"]

"""Parses payloads: schemas, strict JSON, changes of tables, malformed events."""

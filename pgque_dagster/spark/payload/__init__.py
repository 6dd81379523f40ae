"""What is in a payload: schemas, strict JSON, changes of tables, malformed events."""

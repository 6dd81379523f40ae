"""Parquet files: how Spark's tasks write and read them, and the sink of a directory."""

"""Reads events and tables of PostgreSQL into Spark, by Arrow."""

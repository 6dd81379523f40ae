"""Reads events and tables of PostgreSQL into Spark, through Arrow."""

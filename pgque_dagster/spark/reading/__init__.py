"""Reads slices of a batch into Spark: options, Arrow over ADBC, JDBC."""

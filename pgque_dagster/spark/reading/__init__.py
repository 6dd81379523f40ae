"""How slices of a batch reach Spark: options, Arrow over ADBC, JDBC."""

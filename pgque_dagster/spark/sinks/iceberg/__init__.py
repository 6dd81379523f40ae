"""The sink of Iceberg tables."""

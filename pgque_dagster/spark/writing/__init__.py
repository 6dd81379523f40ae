"""Writes the rows of a DataFrame as events: options, columns, COPY."""

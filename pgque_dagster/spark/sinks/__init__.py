"""Sinks for the results of batches. Another attempt at a batch does not count it twice."""

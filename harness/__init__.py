"""Runs Dagster and other programs, for the demo, the tests and the benchmarks."""


class HarnessError(Exception):
    """A program cannot continue; the message says what to do."""

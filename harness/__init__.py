"""Runs Dagster and other programs, for the demo, the tests and the benchmarks."""


class HarnessError(Exception):
    """What was started cannot go on; the message says what to do."""

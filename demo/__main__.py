"""The command line of the demo: `python -m demo [--interactive]`."""

import argparse
import os
import sys

import psycopg

from pgque_dagster.client import PgqueError
from pgque_dagster.embedded import EmbeddedPostgresError

from .console import DemoError
from .interrupts import Interrupts
from .place import Place
from .play import Options, play
from .report import mismatch_lines


def main() -> int:
    """Runs the demo and returns the exit code."""
    options = _parse_options()
    place = Place()
    try:
        with Interrupts() as interrupts, place.taken():
            summary = play(options, place, interrupts)
    except SystemExit:
        # Raised by a signal, which is the normal end of an interactive demo.
        if options.interactive:
            return 0
        raise
    except (DemoError, PgqueError, EmbeddedPostgresError, psycopg.Error, OSError) as error:
        print(f"demo: {' '.join(str(error).split())}", file=sys.stderr)
        return 1

    if summary is None:
        return 0
    print(*summary.lines(), sep="\n")
    if summary.mismatches:
        print(*mismatch_lines(summary.comparisons), sep="\n", file=sys.stderr)
        print("demo: Spark's balances differ from the bank's", file=sys.stderr)
        return 1
    print("Every posting was counted exactly once. `make dev` keeps it running.")
    return 0


def _parse_options() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="pgbench moves money, Spark computes the balances, and the demo compares them"
        " with the bank's own.",
        epilog="With CHAOS=1 in the environment, the demo kills the process of a run.",
    )
    parser.add_argument("--interactive", action="store_true", help="keep running until Ctrl-C")
    parser.add_argument(
        "--seconds", type=int, default=15, help="duration of the load (default: %(default)s)"
    )
    parser.add_argument(
        "--rate", type=int, default=300, help="transactions per second (default: %(default)s)"
    )
    parser.add_argument(
        "--pg",
        type=int,
        choices=(18, 16),
        default=18,
        help="version of PostgreSQL (default: %(default)s)",
    )
    given = parser.parse_args()
    if given.seconds < 1 or given.rate < 1:
        parser.error("--seconds and --rate must be at least 1")
    return Options(
        interactive=given.interactive,
        seconds=given.seconds,
        rate=given.rate,
        postgres=given.pg,
        chaos=os.environ.get("CHAOS") == "1",
    )


if __name__ == "__main__":
    sys.exit(main())

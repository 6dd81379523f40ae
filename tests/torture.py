"""Runs the tests of faults with new seeds until the time is over: `make torture HOURS=1`."""

import argparse
import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

from harness import leftovers

ROOT = Path(__file__).parents[1]
_TESTS = ("tests/dagster/test_shards_servers.py", "tests/live/test_any_fault.py")
# A process of the tests has a start to pay, and says nothing before its end.
_SEEDS_AT_ONCE = 3


def main() -> int:
    """Prints the seeds and the faults; returns 1 if an event was lost or stored twice."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, help="the first one; by default, a random one")
    options = parser.parse_args()
    seed = random.randrange(1_000, 1_000_000) if options.seed is None else options.seed
    ends_at = time.monotonic() + options.hours * 3600
    runs = faults = 0
    leftovers.end_with_this_process()
    folder = Path(os.environ.pop("TMPDIR"))
    with suppress(KeyboardInterrupt):
        while time.monotonic() < ends_at:
            seeds = f"{seed}-{seed + _SEEDS_AT_ONCE - 1}"
            counts, failure = _run(seeds, folder / f"{seed}.xml")
            runs, faults = runs + len(counts), faults + sum(counts)
            print(f"seeds {seeds}: {runs} runs and {faults} faults in total", flush=True)
            if failure is not None:
                print(failure)
                print(f"again: PGQUE_SEEDS={seeds} make test ARGS='-m slow {' '.join(_TESTS)}'")
                return 1
            seed += _SEEDS_AT_ONCE
    print(f"{faults} faults in {runs} runs: no event was lost, and none was stored twice")
    return 0


def _run(seeds: str, report: Path) -> tuple[list[int], str | None]:
    """Returns the number of faults in each run that passed, and what was said if one did not."""
    command = [sys.executable, "-m", "pytest", *_TESTS, "-m", "slow", "-q", "-x"]
    done = subprocess.run(
        [*command, f"--junitxml={report}", "--show-capture=no"],
        cwd=ROOT,
        env={**os.environ, "PGQUE_SEEDS": seeds},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    # Tests that could not begin leave no report.
    found = ElementTree.parse(report).iter("property") if report.exists() else ()
    counts = [int(each.attrib["value"]) for each in found]
    return counts, done.stdout if done.returncode else None


if __name__ == "__main__":
    sys.exit(main())

"""Compares the processor time that `make test` took with the seconds in build/test_seconds.txt.

Fails if the sum is over its limit, and names the files that grew. With `--write`, takes the seconds
of the last `make test` as the new ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = Path(__file__).with_suffix(".txt")
# tests/support/runner/processor_time.py writes it.
MEASURED = ROOT / ".pytest_cache" / "processor_time.json"
# The same tests differ by up to a fifth between runs, and between machines when the speed of each
# is taken into account. A tenth more tests is not a mistake.
FACTOR = 1.4
# A file below it is not kept: nobody looks for seconds there.
_LEAST = 4

Seconds = dict[str, float]


def measured(path: Path = MEASURED) -> Seconds:
    """What each file of the last `make test` took."""
    return {file: sum(spent.values()) for file, spent in json.loads(path.read_text()).items()}


def kept(text: str) -> tuple[float, Seconds]:
    """The sum of all files, and the seconds of those that take long."""
    (_, total), *files = (line.rsplit(maxsplit=1) for line in text.splitlines())
    return float(total), {file: float(seconds) for file, seconds in files}


def kept_text(found: Seconds) -> str:
    """The text of build/test_seconds.txt."""
    files = sorted(file for file, seconds in found.items() if seconds >= _LEAST)
    lines = [f"{file} {found[file]:.0f}" for file in files]
    return "\n".join([f"all {sum(found.values()):.0f}", *lines]) + "\n"


def faults(found: Seconds, text: str) -> list[str]:
    """What to say, if the sum is over its limit."""
    total, before = kept(text)
    spent = sum(found.values())
    if spent <= total * FACTOR:
        return []
    grown = {file: seconds - max(before.get(file, 0), _LEAST) for file, seconds in found.items()}
    return [
        f"the tests take {spent:.0f} s of processor time, {total * FACTOR:.0f} s are allowed"
        f" ({total:.0f} s in {KEPT.relative_to(ROOT)}, and {FACTOR - 1:.0%} more);"
        " these files grew most:",
        *(
            f"  {file}: {found[file]:.0f} s, was {before.get(file, 'less than ' + str(_LEAST))}"
            for file in sorted(grown, key=lambda file: -grown[file])[:15]
            if grown[file] > 0
        ),
        "make their tests cheaper, or run `python build/test_seconds.py --write` and say why",
    ]


def main(arguments: list[str]) -> int:
    """Prints the comparison; returns 1 if the tests take too long."""
    found = measured()
    if arguments == ["--write"]:
        KEPT.write_text(kept_text(found))
        return 0
    said = faults(found, KEPT.read_text())
    print("\n".join(said or [f"the tests took {sum(found.values()):.0f} s of processor time"]))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runs tests with the oldest version of a package that pyproject.toml allows.

    build/oldest.py dagster [options of pytest]
    build/oldest.py pyspark [options of pytest]

They have an environment of their own, such as .venv-dagster-oldest. What else is in it has the
versions of constraints.txt.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = {"dagster": "tests/dagster", "pyspark": "tests/spark"}
# What is tested in its oldest version beside them.
BESIDE = {"pyspark": ("msgspec",)}
# What the oldest version wants older than constraints.txt has it.
UNPINNED = {"dagster": ("gql", "tomlkit", "typer")}


def main() -> int:
    """Makes the environment where that is not current, and runs the tests; returns their status."""
    if len(sys.argv) < 2 or sys.argv[1] not in TESTS:
        print(f"usage: build/oldest.py {'|'.join(TESTS)} [options of pytest]", file=sys.stderr)
        return 2
    package, *options = sys.argv[1:]
    python = str(make_environment(package))
    tests = [python, "-m", "pytest", TESTS[package], *options]
    return subprocess.run(tests, cwd=ROOT, check=False).returncode


def make_environment(package: str) -> Path:
    """Returns the Python of an environment with the package in its oldest version."""
    folder = ROOT / f".venv-{package}-oldest"
    python = folder / "bin" / "python"
    # Written when all is installed, so it tells what an environment is made for.
    installed = folder / "constraints.txt"
    wanted = constraints(package)
    if not installed.is_file() or installed.read_text() != wanted:
        print(f"Making {folder.name}, some minutes ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        unfinished = installed.with_suffix(".new")
        unfinished.write_text(wanted)
        install = ["install", "--quiet", "--disable-pip-version-check", "--no-input"]
        subprocess.run(
            [python, "-m", "pip", *install, "--constraint", unfinished, "--editable", ".[dev]"],
            cwd=ROOT,
            check=True,
        )
        unfinished.rename(installed)
    return python


def constraints(package: str) -> str:
    """Returns constraints.txt with the lower bounds of the package and what goes with it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [each for group in project["optional-dependencies"].values() for each in group]
    packages = (package, *BESIDE.get(package, ()))
    bound = re.compile(rf"((?:{'|'.join(packages)})[\w-]*)>=([\d.]+)")
    oldest = [f"{found[1]}=={found[2]}" for found in map(bound.match, requirements) if found]
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    left_out = (*packages, *UNPINNED.get(package, ()))
    others = [line for line in pinned if not line.startswith(left_out)]
    return "\n".join([*oldest, *others, ""])


if __name__ == "__main__":
    sys.exit(main())

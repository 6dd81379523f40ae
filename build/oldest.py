"""Runs tests with the oldest version of a package that pyproject.toml allows.

    build/oldest.py dagster [options of pytest]
    build/oldest.py pyspark [options of pytest]

The tests run in their own environment, such as .venv-dagster-oldest. All other packages have the
versions of constraints.txt.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = {"dagster": "tests/dagster", "pyspark": "tests/spark"}
# Packages that are installed in their oldest version as well.
BESIDE = {"pyspark": ("msgspec",)}
# Packages that the oldest version needs older than in constraints.txt.
UNPINNED = {"dagster": ("gql", "tomlkit", "typer")}


def main() -> int:
    """Creates the environment if it is not up to date, and runs the tests; returns their status."""
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
    # Written after the installation, so it exists only in a complete environment.
    installed = folder / "constraints.txt"
    wanted = constraints(package)
    if not installed.is_file() or installed.read_text() != wanted:
        print(f"Creating {folder.name}, which takes some minutes ...", file=sys.stderr)
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
    """Returns constraints.txt with the lower bounds of the package and those in `BESIDE`."""
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

"""Builds the sdist and the wheel in dist/, checks them, and tries the wheel in empty environments.

    build/release.py [NAME...]       NAME: only these extras, `none`, `all`, `oldest`

The environments have each extra alone and all together, on the oldest and newest Python that this
machine has, with the versions of constraints.txt; and all extras with the oldest Dagster and the
oldest PySpark. `smoke.py` runs in each. `make release` installs build and twine before.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import oldest
import psycopg

from pgque_dagster.embedded import EmbeddedPostgres

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
Project = dict[str, Any]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
# Files that the wheel must have; those of a new project are checked by `pgque init`.
NEEDED = (
    "pgque_dagster/py.typed",
    "pgque_dagster/sql/pgque.sql",
    "pgque_dagster/sql/pgque_uninstall.sql",
    "pgque_dagster/new_project/.gitignore",
)


class Failed(Exception):
    """A step of the release failed; the message says what to do."""


@dataclass(frozen=True)
class Trial:
    """An environment.

    Attributes:
        python: its Python.
        extra: what is installed; "" for the package alone.
        package: the one that is as old as possible; "" if all are those of constraints.txt.
    """

    python: Path
    extra: str
    package: str = ""

    def __str__(self) -> str:
        extra = f"[{self.extra}]" if self.extra else ""
        old = f", oldest {self.package}" if self.package else ""
        return f"Python {python_version(self.python)}, pgque-dagster{extra}{old}"

    @property
    def names(self) -> set[str]:
        """What selects it on the command line."""
        return {self.extra or "none", *(["oldest", self.package] if self.package else [])}


def main() -> int:
    """Builds, checks and tries; returns 1 if a step failed."""
    began = time.monotonic()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    try:
        with tempfile.TemporaryDirectory(prefix="pgque-release-") as folder:
            work = Path(folder)
            wheel = build_and_check(project)
            failed = try_wheel(project, wheel, work)
    except Failed as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    minutes = (time.monotonic() - began) / 60
    if failed:
        print(f"release: {len(failed)} environments failed ({minutes:.1f} min):", file=sys.stderr)
        print(*failed, sep="\n", file=sys.stderr)
        return 1
    print(f"release: {wheel.name} works in all environments tried ({minutes:.1f} min)")
    for remark in remarks(project):
        print(f"release: before it is published: {remark}")
    return 0


def build_and_check(project: Project) -> Path:
    """Builds both files and checks them; returns the wheel."""
    for old in DIST.glob("pgque_dagster-*"):
        old.unlink()
    print("release: building sdist and wheel ...", flush=True)
    pinned = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    # -P, because the folder build/ is not a package.
    run(sys.executable, "-P", "-m", "build", "--outdir", DIST, ROOT, env=pinned)
    wheels, sdists = sorted(DIST.glob("*.whl")), sorted(DIST.glob("*.tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        raise Failed(f"dist/ has {len(wheels)} wheels and {len(sdists)} sdists, not one of each")
    print("release: checking their metadata and files ...", flush=True)
    run(sys.executable, "-m", "twine", "check", "--strict", *wheels, *sdists)
    if problems := list(wheel_problems(wheels[0], str(project["version"]))):
        raise Failed("; ".join(problems))
    return wheels[0]


def wheel_problems(wheel: Path, version: str) -> Iterator[str]:
    """Yields what is wrong with the files and the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata: Message = Parser().parsestr(archive.read(path).decode())
    addons = [path.name for path in (ROOT / "sql").glob("pgque_*.sql")]
    for needed in (*NEEDED, *(f"pgque_dagster/sql/{name}" for name in addons)):
        if needed not in names:
            yield f"{wheel.name} lacks {needed}: see package-data in pyproject.toml"
    for name in names:
        if not re.match(r"pgque_dagster(-[^/]*\.dist-info)?/", name):
            yield f"{wheel.name} has {name}, which is not part of the package"
        is_new_project = name.startswith("pgque_dagster/new_project/")
        if not is_new_project and re.search(r"/tests?/|/test_\w+\.py$", name):
            yield f"{wheel.name} has the test {name}"
    classifiers = metadata.get_all("Classifier", [])
    if "Development Status :: 4 - Beta" not in classifiers:
        yield f"{wheel.name} is not classified as beta"
    if metadata["Version"] != version:
        yield f"{wheel.name} has another version than pyproject.toml"
    for link in metadata.get_all("Project-URL", []):
        if not re.search(r", https://\S+$", link):
            yield f"{link} is not a link of a project"


def remarks(project: Project) -> Iterator[str]:
    """Yields what a person has to do before the version can be published."""
    if not project.get("urls"):
        yield "[project.urls] in pyproject.toml is missing: add the address of the repository"
    if f"## [{project['version']}]" not in (ROOT / "CHANGELOG.md").read_text():
        yield f"CHANGELOG.md has no section [{project['version']}]: rename [Unreleased]"
    if not (ROOT / "tests/released" / str(project["version"])).is_dir():
        yield "the SQL of this version is not in tests/released: see its README.md"


def try_wheel(project: Project, wheel: Path, work: Path) -> list[str]:
    """Tries the wheel in each environment; returns those that failed."""
    pythons = supported_pythons(project)
    if len(pythons) == 1:
        print(f"release: only Python {python_version(pythons[0])} is on this machine")
    names = set(sys.argv[1:])
    trials = [each for each in all_trials(project, pythons) if not names or names & each.names]
    if not trials:
        raise Failed(f"no environment is named {' or '.join(sorted(names))}")
    failed = []
    with EmbeddedPostgres(work / "postgres") as server:
        for number, trial in enumerate(trials, start=1):
            began = time.monotonic()
            print(f"[{number}/{len(trials)}] {trial} ... ", end="", flush=True)
            try:
                attempt(trial, wheel, work / f"trial-{number}", server)
                told = "ok"
            except Failed as error:
                failed.append(str(trial))
                told = f"FAILED: {error}\n "
            print(f"{told} {time.monotonic() - began:.0f} s", flush=True)
    return failed


def all_trials(project: Project, pythons: list[Path]) -> Iterator[Trial]:
    """Yields every environment."""
    extras = sorted(set(project["optional-dependencies"]) - {"demo", "dev"})
    for python in pythons:
        for extra in ("", *extras):
            yield Trial(python, extra)
    for package in oldest.TESTS:
        yield Trial(pythons[0], "all", package)


def attempt(trial: Trial, wheel: Path, folder: Path, server: EmbeddedPostgres) -> None:
    """Installs the wheel into a new environment, and runs the smoke test in it."""
    database = f"release_{folder.name}".replace("-", "_")
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create database {database}".encode())
    with tempfile.TemporaryDirectory(prefix="env-", dir=folder.parent) as environment:
        python = make_environment(trial.python, Path(environment))
        constraints = Path(environment) / "constraints.txt"
        pinned = ROOT / "constraints.txt"
        constraints.write_text(
            oldest.constraints(trial.package) if trial.package else pinned.read_text()
        )
        wanted = f"{wheel}[{trial.extra}]" if trial.extra else str(wheel)
        # Bytecode of what the smoke test never imports takes half of the time.
        run(python, *PIP, "install", "--no-compile", "--constraint", constraints, wanted)
        run(python, *PIP, "check")
        url = {"PGQUE_URL": server.database_url(database)}
        extras = [trial.extra] if trial.extra else []
        # Away from the clone, whose package the environment must not find.
        run(python, "-P", ROOT / "build/smoke.py", *extras, cwd=environment, env=os.environ | url)


def supported_pythons(project: Project) -> list[Path]:
    """Returns the oldest and the newest supported Python that this machine has."""
    supported = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    found = [python for version in supported if (python := find_python(version))]
    if not found:
        raise Failed(f"none of Python {', '.join(supported)} is on the PATH or in ~/.pyenv")
    return [found[0]] if len(found) == 1 else [found[0], found[-1]]


def find_python(version: str) -> Path | None:
    """Returns a Python of a version that runs, on the PATH or of pyenv."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin"))
    for path in (folder / f"python{version}" for folder in folders):
        done = path.is_file() and subprocess.run(
            [path, "-c", "import ensurepip, venv"], check=False, capture_output=True
        )
        if done and done.returncode == 0:
            return path
    return None


def python_version(python: Path) -> str:
    """Returns a Python's version, such as 3.13.0."""
    program = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip()


def make_environment(python: Path, folder: Path) -> Path:
    """Returns the Python of a new environment."""
    run(python, "-m", "venv", folder)
    return folder / "bin/python"


def run(*command: str | Path, **options: Any) -> None:
    """Runs a program; raises with the end of what it wrote if it fails."""
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        wrote = "\n".join(done.stdout.splitlines()[-25:])
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{wrote}")


if __name__ == "__main__":
    sys.exit(main())

"""What `make release` finds wrong with a wheel, and the environments in which it tries one."""

import tomllib
import zipfile
from pathlib import Path

import pytest
import release
import smoke

METADATA = "Name: pgque-dagster\nVersion: 0.4.0\nClassifier: Development Status :: 4 - Beta\n"
ADDONS = [f"pgque_dagster/sql/{path.name}" for path in (release.ROOT / "sql").glob("pgque_*.sql")]
FILES = [*release.NEEDED, *ADDONS, "pgque_dagster/new_project/tests/test_revenue.py"]


def problems(folder: Path, files: list[str], metadata: str = METADATA) -> str:
    wheel = folder / "pgque_dagster-0.4.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pgque_dagster-0.4.0.dist-info/METADATA", metadata)
        for name in dict.fromkeys(files):
            archive.writestr(name, "")
    return "; ".join(release.wheel_problems(wheel, "0.4.0"))


def test_a_wheel_with_all_files_is_accepted(tmp_path: Path) -> None:
    links = f"{METADATA}Project-URL: Source, https://example.com/pgque\n"
    assert problems(tmp_path, FILES, links) == ""


@pytest.mark.parametrize("missing", [*release.NEEDED, *ADDONS])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    assert f"lacks {missing}" in problems(tmp_path, [name for name in FILES if name != missing])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("tests/conftest.py", "not part of the package"),
        ("pgque_dagster/tests/data.sql", "has the test"),
        ("pgque_dagster/client/test_batch.py", "has the test"),
    ],
)
def test_a_test_in_the_wheel_is_named(tmp_path: Path, name: str, why: str) -> None:
    assert why in problems(tmp_path, [*FILES, name])


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        (METADATA.replace("4 - Beta", "3 - Alpha"), "not classified as beta"),
        (METADATA.replace("0.4.0", "0.3.0"), "another version"),
        (f"{METADATA}Project-URL: Source, path/to/clone\n", "not a link of a project"),
    ],
)
def test_wrong_metadata_is_named(tmp_path: Path, metadata: str, why: str) -> None:
    assert why in problems(tmp_path, FILES, metadata)


def test_each_extra_is_tried_alone_and_all_together_on_each_python() -> None:
    pythons = [Path("/old"), Path("/new")]
    extras = {"spark": [], "delta": [], "all": [], "dev": []}
    trials = set(release.all_trials({"optional-dependencies": extras}, pythons))

    wanted = {release.Trial(python, name) for python in pythons for name in ("", *extras)}
    wanted = {trial for trial in wanted if trial.extra != "dev"}
    oldest = {release.Trial(pythons[0], "all", package) for package in ("dagster", "pyspark")}
    assert trials == wanted | oldest


def test_every_extra_has_a_smoke_test() -> None:

    project = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["project"]
    assert smoke.TRIALS.keys() == project["optional-dependencies"].keys() - {"demo", "dev"}

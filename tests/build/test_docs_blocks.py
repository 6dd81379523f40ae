"""Each block of code in the pages is executed here or by a test named here, or says why not."""

import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import DataFrame

import pgque_dagster
import pgque_dagster.client
import pgque_dagster.spark
from pgque_dagster.cli import main
from pgque_dagster.cli.named import url_of
from pgque_dagster.installer import install
from tests.client.examples import has_nothing_to_do, run, ticking
from tests.support.queues.sql import connect

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = ("reference.md", "cli.md")
LANGUAGES = {"sh", "python", "sql", "yaml", "json", "toml"}
NO_CODE = "text"

# Tests that execute the blocks of a page in a language.
ELSEWHERE = {
    ("client.md", "python"): "tests/client/test_client_docs.py",
    ("migrating.md", "sql"): "tests/addons/pgq/test_migrating.py",
    ("movers.md", "python"): "tests/client/target/test_movers.py",
    ("observability.md", "yaml"): "tests/engine/test_metrics.py",
    ("replicas.md", "sql"): "tests/dagster/replicas/test_roles.py",
}
_CONSUMED = (
    "select pgque.create_queue('orders'); select pgque.register_consumer('orders', 'revenue')"
)
# What a page's blocks find in their database: add-ons, and what these statements make.
PREPARED: dict[str, tuple[list[str], str]] = {
    "come-from.md": (
        ["postgremq"],
        "select pgque.create_queue('mails'); create table customers (email text)",
    ),
    "operating.md": ([], _CONSUMED),
    "partitions.md": (
        [],
        "create table mails (id text); select pgque.create_queue('orders');"
        "select pgque.subscribe_slots('orders', 'revenue', 8);"
        "select pgque.subscribe_slots('orders', 'mailer', 8)",
    ),
    "postgremq.md": (["postgremq"], ""),
    "qgres.md": (["qgres"], ""),
    "runbook.md": ([], _CONSUMED),
}

_FENCE = re.compile(r" *```(\w*)$")
_REASON = re.compile(r" *<!-- not executed: (.+) -->$")
_PATH = re.compile(r"\btests/[\w/.]*\w")


@dataclass(frozen=True)
class Block:
    """A block of a page, with the reason why nothing executes it, if it has one."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None

    @property
    def is_executed_here(self) -> bool:
        skipped = self.reason or (self.page, self.language) in ELSEWHERE
        return self.language != NO_CODE and not skipped


def pages() -> list[Path]:
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if page.name not in GENERATED]


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text().splitlines()
    fences = [number for number, line in enumerate(lines) if line.lstrip().startswith("```")]
    for begin, end in zip(fences[::2], fences[1::2], strict=True):
        fence, reason = _FENCE.match(lines[begin]), _REASON.match(lines[begin - 1])
        assert fence, f"{page.name}:{begin + 1} is not the begin of a block"
        text = "\n".join(lines[begin + 1 : end])
        yield Block(page.name, begin + 1, fence[1], text, reason[1] if reason else None)


BLOCKS = [block for page in pages() for block in blocks(page)]


def test_each_block_names_its_language() -> None:
    unknown = [
        f"{block.page}:{block.line}"
        for block in BLOCKS
        if block.language not in LANGUAGES | {NO_CODE}
    ]
    assert unknown == []


def test_the_tests_that_execute_blocks_exist_and_name_their_page() -> None:
    named = {path for block in BLOCKS for path in _PATH.findall(block.reason or "")}
    assert [path for path in named if not (ROOT / path).exists()] == []
    pages_of_blocks = {(block.page, block.language) for block in BLOCKS}
    for (page, language), test in ELSEWHERE.items():
        assert (page, language) in pages_of_blocks
        assert page in (ROOT / test).read_text()


class Executor:
    """Executes the blocks of a page one after another, which share a database and their names."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._names = names_of_examples(url)
        self.execute: dict[str, Callable[[str], None]] = {
            "python": self._python,
            "sh": self._shell,
            "sql": self._sql,
            "toml": self._toml,
            "yaml": self._yaml,
        }

    def prepare(self, addons: list[str], statements: str) -> None:
        if addons:
            install(self._url, addons)
        if statements:
            self._sql(statements)

    def _sql(self, text: str) -> None:
        with connect(self._url) as db:
            db.execute(text.encode())

    def _shell(self, text: str) -> None:
        for line in text.splitlines():
            command, *arguments = shlex.split(line, comments=True)
            assert command == "pgque", f"only `pgque` is executed, not {line}"
            done = CliRunner().invoke(main, arguments, env={"PGQUE_URL": self._url})
            assert done.exit_code == 0, done.output

    def _python(self, text: str) -> None:
        run(text, self._names, lambda consumer: has_nothing_to_do(consumer, self._url))

    def _toml(self, text: str) -> None:
        (self._folder / "pyproject.toml").write_text(text)
        with chdir(self._folder):
            for name, url in tomllib.loads(text)["tool"]["pgque"]["databases"].items():
                assert url_of(name) == url

    def _yaml(self, text: str) -> None:
        found = yaml.safe_load(text)
        if "type" in found:
            component = getattr(pgque_dagster, found["type"].removeprefix("pgque_dagster."))
            component.get_model_cls().model_validate(found["attributes"])
        elif set(found) == {"sink"}:
            attributes = {"queue": "orders", "transform": ".transform.revenue", **found}
            model: Any = pgque_dagster.BatchConsumerComponent.get_model_cls()
            model.model_validate(attributes)
        else:
            (self._folder / "dagster.yaml").write_text(text)
            with dg.DagsterInstance.from_config(str(self._folder)) as instance:
                assert instance.run_launcher
                assert instance.run_coordinator


def names_of_examples(url: str) -> dict[str, Any]:
    """What blocks of Python may use without an import or a definition of their own."""
    names: dict[str, Any] = {
        name: getattr(module, name)
        for module in (pgque_dagster.client, pgque_dagster.spark, pgque_dagster)
        for name in dir(module)
        if not name.startswith("_")
    }

    def revenue(batch: pgque_dagster.spark.SparkBatch) -> DataFrame:
        return batch.events()

    return names | {
        "__name__": "example",
        "ClassVar": ClassVar,
        "DataFrame": DataFrame,
        "LazyPySparkResource": LazyPySparkResource,
        "bill": print,
        "dg": dg,
        "os": os,
        "pyspark": LazyPySparkResource(spark_config={}),
        "revenue": pgque_dagster.pgque_asset(queue="orders")(revenue),
        "send_mail": print,
        "url": url,
    }


EXECUTED = sorted({block.page for block in BLOCKS if block.is_executed_here})


@pytest.mark.parametrize("page", EXECUTED)
def test_the_blocks_of_a_page_run(
    page: str, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUE_URL", database_url)
    executor = Executor(database_url, tmp_path)
    executor.prepare(*PREPARED.get(page, ([], "")))
    with ticking(database_url):
        for block in BLOCKS:
            if block.page == page and block.is_executed_here:
                try:
                    executor.execute[block.language](block.text)
                except Exception as error:
                    error.add_note(f"in the block of {page}, line {block.line}")
                    raise

"""One word for each thing: those that were given up do not come back."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.build.test_docs_links import ROOT, code, pages

# By the word to use: the words that were given up, and the files that may have them.
GIVEN_UP: dict[str, tuple[str, tuple[str, ...]]] = {
    # Dagster's lineage is the graph of assets. Names that 0.3 stored or had in SQL stay.
    "incarnation": (
        r'(?<![\w./"])lineages?\b|\b(begin|earlier|current|new|this)[ _]life\b|'
        r"\blife of (a|the|this|that) database\b",
        (
            "CHANGELOG.md",
            "demo/screenshots.py",
            "docs/*",
            "pgque_dagster/components/*",
            "pgque_dagster/replicas/*",
            "sql/ops/grants.sql",
            "tests/client/target/test_takeover.py",
            "tests/dagster/test_lineage.py",
            "tests/engine/test_upgrade.py",
            "tests/security/decisions.py",
        ),
    ),
    "held": (r"(?<![a-z])park(s|ed|ing)?(?![a-z])", ()),
    "shards": (r"(?<![a-z])sharding(?![a-z])", ()),
}


@pytest.mark.parametrize("word", GIVEN_UP)
def test_a_word_that_was_given_up_is_nowhere(word: str) -> None:
    pattern, allowed = GIVEN_UP[word]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _written(allowed)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line, re.IGNORECASE)
    ]
    assert not found, f"say {word} in\n" + "\n".join(found)


def _written(allowed: tuple[str, ...]) -> list[Path]:
    """The files that people write, without those allowed. sql/pgque.sql is made of others."""
    left_out = ("sql/pgque*.sql", "tests/build/test_words.py", *allowed)
    return [
        path
        for path in (*pages(), *code())
        if not any(fnmatch(str(path.relative_to(ROOT)), each) for each in left_out)
    ]

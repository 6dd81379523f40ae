"""Sphinx's settings for the site of these pages, which `make docs` builds into site/.

The pages are Markdown as GitHub shows it. MyST reads the same dialect, so there is nothing to write
twice. The navigation is the list in index.md.
"""

import re

from sphinx.application import Sphinx

project = "pgque-dagster"
author = "the authors of pgque-dagster"
extensions = ["myst_parser"]
myst_enable_extensions = ["tasklist"]
# Links to headings, with the anchors that GitHub gives them.
myst_heading_anchors = 4
# Blocks in `text` and in shells are no failures of a lexer, nor is JSON with an ellipsis.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "text"
html_theme = "furo"
html_title = "pgque-dagster"
html_copy_source = False
html_show_sphinx = False

# On the site a page is no file.
_FILE_NAME = re.compile(r"\[([\w-]+)\.md\]\(")
_LINK = re.compile(r"^- \[([^\]]+)\]\(([\w/-]+)\.md\)", re.MULTILINE)


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Adds what Sphinx wants for the navigation to the list of pages, which people read."""
    source[0] = _FILE_NAME.sub(r"[\1](", source[0])
    if page != "index":
        return
    for chapter in source[0].split("\n## ")[1:]:
        title = chapter.split("\n", 1)[0]
        entries = "\n".join(f"{name} <{target}>" for name, target in _LINK.findall(chapter))
        source[0] += f"\n```{{toctree}}\n:caption: {title}\n:hidden:\n\n{entries}\n```\n"
    source[0] += "\n```{toctree}\n:caption: Decisions\n:hidden:\n:glob:\n\ndecisions/*\n```\n"


def setup(app: Sphinx) -> None:
    """Registers what changes the pages while they are read."""
    app.connect("source-read", add_navigation)

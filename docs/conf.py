"""How Sphinx builds this folder into a site: `make docs`, docs/decisions/013-docs-generator.md says why.

The pages are plain Markdown that reads well in the repository, so nothing of Sphinx stands in them. The navigation is
made here: each section below lists the pages that come first, and whatever else lies in its folders follows by name. A
page that is added is found by itself; one that is named here and not there yet is passed over.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

from waystation.version import __version__  # noqa: E402 - the sources need not be installed


class Section(NamedTuple):
    """A part of the navigation: the pages that come first, then the rest of a folder."""

    title: str
    first: tuple[str, ...]
    folder: str = ""


SECTIONS = (
    Section("Start", ("guide/getting-started", "guide/dashboard", "comparison")),
    Section(
        "Guides",
        (
            "guide/python-client",
            "guide/work-queues",
            "guide/long-jobs",
            "guide/dead-letters",
            "guide/publish-subscribe",
            "guide/routing",
            "guide/kafka-clients",
            "guide/topics",
            "guide/groups",
            "guide/share-groups",
            "guide/exactly-once",
            "guide/outbox",
            "guide/amqp",
            "guide/task-queues",
            "guide/amqp-and-topics",
            "guide/spark-source",
            "guide/spark-sink",
            "guide/spark-sql",
            "guide/spark-from-kafka",
            "guide/spark-queues",
            "guide/pipelines",
            "guide/pipeline-formats",
            "guide/pipeline-tests",
            "guide/pipeline-rules",
            "guide/pipeline-monitoring",
            "guide/ready-made-pipelines",
            "guide/spark-clusters",
            "guide/testing-with-pytest",
        ),
        "guide",
    ),
    Section("How to", (), "how-to"),
    Section(
        "Operations",
        (
            "operations/running-as-a-service",
            "operations/configuration",
            "operations/listeners",
            "operations/monitoring",
            "operations/tracing",
            "operations/troubleshooting",
        ),
        "operations",
    ),
    Section(
        "Reference",
        (
            "reference/command-line",
            "reference/settings",
            "reference/python-api",
            "reference/http",
            "reference/errors",
            "reference/metrics",
            "reference/kafka-apis",
            "reference/amqp",
            "reference/management-api",
            "reference/json-lines",
            "reference/native-protocol",
            "reference/crossing",
            "reference/durability",
            "reference/on-disk",
            "reference/benchmarks",
            "reference/glossary",
        ),
        "reference",
    ),
    Section("Decisions", ("decisions/index",), "decisions"),
)

project = "Waystation"
copyright = "the Waystation authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["images/*.md"]

# Links such as `command-line.md#places` lead to headings by the names that a repository's browser gives them.
myst_heading_anchors = 4
# An address in a text stays a text: what a page links to is written as a link.
myst_enable_extensions: list[str] = []

html_theme = "furo"
html_title = f"Waystation {__version__}"
html_copy_source = False
html_show_sourcelink = False
# The theme's styles, scripts and icons are copied into the site; no page asks another host for anything.
html_static_path: list[str] = []
pygments_style = "default"
pygments_dark_style = "github-dark"


def navigation() -> str:
    """The hidden tables of contents, one for each section, as they are put behind the text of the first page."""
    taken: set[str] = set()
    tables: list[str] = []
    for section in SECTIONS:
        pages = [page for page in section.first if (HERE / f"{page}.md").exists()]
        if section.folder:
            rest = sorted(path.stem for path in (HERE / section.folder).glob("*.md"))
            pages += [page for name in rest if (page := f"{section.folder}/{name}") not in (*pages, *taken)]
        taken.update(pages)
        if pages:
            tables.append("\n".join(("```{toctree}", ":hidden:", f":caption: {section.title}", "", *pages, "```")))
    return "\n\n".join(tables)


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Sphinx hands every page through here before it is read."""
    if page == "index":
        source[0] += f"\n\n{navigation()}\n"
    # `sh run` and `console run` tell the tests that a block is to be run; to the reader it is `sh` or `console`.
    source[0] = re.sub(r"^( *)```(sh|console) run$", r"\1```\2", source[0], flags=re.MULTILINE)
    # What lies outside of this folder is no page of the site; it comes along as a file.
    outside = "../" * (page.count("/") + 1)
    source[0] = re.sub(rf"\]\(({re.escape(outside)}[^)#]*)\)", r"](path:\1)", source[0])


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)

"""Links in README, design and documentation have a target, and examples use existing options."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from spark_group_source.options.table import OPTIONS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "spark_group_source" / "DESIGN.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
HANDSHAKE = REPOSITORY / "spark_group_source" / "group" / "classic_state.py"
CODE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
KNOWN = {option.name for option in OPTIONS}


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", COMMENT.sub("", CODE.sub("", page.read_text())))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site derive from headings."""
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("page", "link"), [(page, link) for page in PAGES for link in links(page) if "://" not in link]
)
def test_a_link_has_an_existing_file_and_heading(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.is_relative_to(REPOSITORY)
    assert target.exists()
    assert not anchor or anchor in anchors(target)


def options_of_the_source(code: str) -> set[str]:
    """Names in ``.option(...)`` after ``format("kafka-group")``, without the options of sinks."""
    calls = [each for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Call)]
    before = {each: ast.unparse(each.func) for each in calls}
    return {
        ast.literal_eval(each.args[0])
        for each, chain in before.items()
        if chain.endswith(".option") and "format('kafka-group')" in chain and ".load(" not in chain
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_are_python_and_use_existing_options(page: Path) -> None:
    for language, code in CODE.findall(page.read_text()):
        if language == "python":
            assert options_of_the_source(code) <= KNOWN


def test_the_state_diagram_equals_that_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "contributing.md").read_text()
    shown = [code for _, code in CODE.findall(page) if "JOINING" in code]
    assert shown
    assert all(code in HANDSHAKE.read_text() for code in shown)

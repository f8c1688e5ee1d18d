"""Links in README, design and documentation lead somewhere, and examples use options that exist."""

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
STATE = REPOSITORY / "spark_group_source" / "group" / "state.py"
CODE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
KNOWN = {option.name for option in OPTIONS}


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", COMMENT.sub("", CODE.sub("", page.read_text())))


def anchors(page: Path) -> set[str]:
    """As GitHub and the site's builder make them of headings."""
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    ("page", "link"), [(page, link) for page in PAGES for link in links(page) if "://" not in link]
)
def test_a_link_leads_to_a_file_and_a_heading_that_are_there(page: Path, link: str) -> None:
    path, _, anchor = link.partition("#")
    there = (page.parent / path).resolve() if path else page
    assert there.is_relative_to(REPOSITORY)
    assert there.exists()
    assert not anchor or anchor in anchors(there)


def options_of_the_source(code: str) -> set[str]:
    """Names in ``.option(...)`` behind ``format("kafka-group")``; those of sinks are Spark's."""
    calls = [each for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Call)]
    before = {each: ast.unparse(each.func) for each in calls}
    return {
        ast.literal_eval(each.args[0])
        for each, chain in before.items()
        if chain.endswith(".option") and "format('kafka-group')" in chain and ".load(" not in chain
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_are_python_and_name_options_that_exist(page: Path) -> None:
    for language, code in CODE.findall(page.read_text()):
        if language == "python":
            assert options_of_the_source(code) <= KNOWN


def test_the_state_diagram_shown_is_that_of_the_code() -> None:
    page = (REPOSITORY / "docs" / "contributing.md").read_text()
    shown = [code for _, code in CODE.findall(page) if "JOINING" in code]
    assert shown
    assert all(code in STATE.read_text() for code in shown)

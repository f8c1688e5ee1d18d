"""Links in README, design and documentation have a target, and examples use existing options."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from spark_group_source.options.table import OPTIONS

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "spark_group_source"
DESIGN = PACKAGE / "DESIGN.md"
PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    DESIGN,
    REPOSITORY / "jobs" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
CODE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)
KNOWN = {option.name for option in OPTIONS}


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", COMMENT.sub("", CODE.sub("", page.read_text())))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site derive from headings."""
    titles = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_a_link_has_an_existing_file_and_heading() -> None:
    dead = []
    for page in PAGES:
        for link in (each for each in links(page) if "://" not in each):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            inside = target.is_relative_to(REPOSITORY) and target.exists()
            if not inside or (anchor and anchor not in anchors(target)):
                dead.append(f"{page.name}: {link}")
    assert dead == []


def options_of_the_source(code: str) -> set[str]:
    """Names in ``.option(...)`` after ``format("kafka-group")``, without the options of sinks."""
    calls = [each for each in ast.walk(ast.parse(code)) if isinstance(each, ast.Call)]
    before = {each: ast.unparse(each.func) for each in calls}
    return {
        ast.literal_eval(each.args[0])
        for each, chain in before.items()
        if chain.endswith(".option") and "format('kafka-group')" in chain and ".load(" not in chain
    }


def test_examples_are_python_and_use_existing_options() -> None:
    codes = [(page.name, *found) for page in PAGES for found in CODE.findall(page.read_text())]
    examples = [(name, options_of_the_source(code)) for name, language, code in codes if language == "python"]
    assert [(name, options - KNOWN) for name, options in examples if options - KNOWN] == []


def test_nothing_is_installed_from_pypi_before_its_release() -> None:
    if "unreleased" in (REPOSITORY / "docs" / "CHANGELOG.md").read_text():
        found = [re.findall(r"^.*pip install.*spark_group_source.*$", page.read_text(), re.M) for page in PAGES]
        commands = [each for of_page in found for each in of_page]
        assert [each for each in commands if not re.search(r"\.whl|in a clone|[Aa]fter the release", each)] == []


def test_whoever_decides_reads_the_license_of_each_dependency() -> None:
    project = (REPOSITORY / "pyproject.toml").read_text()
    (listed,) = re.findall(r"^dependencies = \[(.*?)^\]", project, re.M | re.S)
    required = re.findall(r'^ *"([\w-]+)', listed, re.M)
    page = (REPOSITORY / "docs" / "evaluating.md").read_text()
    (row,) = re.findall(r"^\| Which licenses.*$", page, re.M)
    assert required
    assert [name for name in required if name not in row] == []


def test_the_design_names_tests_that_exist() -> None:
    sources = [path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")]
    existing = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.M)}
    named = set(re.findall(r"`(test_\w+)`", DESIGN.read_text()))
    assert named
    assert named <= existing


def test_the_map_of_the_design_has_each_module_once() -> None:
    """A directory with a noun of its own covers its modules; ``__init__.py`` needs no line."""
    code = next(code for _, code in CODE.findall(DESIGN.read_text()) if code.startswith("errors.py"))
    named: list[str] = []
    directories: list[str] = []
    for indent, name, noun in re.findall(r"^((?: {2})*)(\S+) *(.*)$", code, re.M):
        directories = directories[: len(indent) // 2]
        if noun:
            named.append("".join([*directories, name]))
        else:
            directories.append(name)
    covered = tuple(name for name in named if name.endswith("/"))
    modules = [path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted([*covered, *(each for each in modules if not each.startswith(covered))])

"""docs/testing.md shows the example project's code as it is tested, and every fixture. Running this copies the code."""

from __future__ import annotations

import re
from pathlib import Path

from spark_group_source.testing import plugin

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = REPOSITORY / "docs" / "testing.md"
PROJECT = REPOSITORY / "tests" / "example_project"
SHOWN = re.compile(r"(<!-- example: (\S+) -->\n```\w+\n)(.*?)(```\n)", re.DOTALL)


def page() -> str:
    """The page with the files of the example as they are now."""
    return SHOWN.sub(
        lambda found: found[1] + (PROJECT / found[2]).read_text("utf-8") + found[4], PAGE.read_text("utf-8")
    )


def test_the_page_shows_every_tested_file_of_the_example() -> None:
    assert PAGE.read_text("utf-8") == page()
    files = {path.relative_to(PROJECT).as_posix() for path in PROJECT.rglob("*.py")}
    assert {name for _, name, *_ in SHOWN.findall(page())} == files


def test_the_page_lists_every_fixture() -> None:
    fixtures = set(re.findall(r"^@pytest\.fixture.*\ndef (\w+)", Path(plugin.__file__).read_text(), re.MULTILINE))
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE)) == fixtures


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

"""``docs/messages.md`` has a section for each error code, and errors end with the command that prints their section."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spark_group_source
from spark_group_source import errors
from spark_group_source.__main__ import main, sections
from spark_group_source.errors import GroupSourceError

PACKAGE = Path(spark_group_source.__file__).parent
PAGE = (PACKAGE.parent / "docs/messages.md").read_text().partition("\n## Errors\n")[2].partition("\n## Log lines\n")[0]
CODES = re.findall(r"^### (.+)$", PAGE, re.M)
QUOTES = [" ".join(quote.split()) for quote in re.findall(r"(?<![*\w])\*([^*]+)\*", PAGE)]
KAFKA_NAMES = re.compile(r"[A-Z_]+")


def error_classes(base: type[GroupSourceError] = GroupSourceError) -> list[type[GroupSourceError]]:
    """All error classes of the package, with those of the testing kit."""
    for module in pkgutil.walk_packages(spark_group_source.__path__, "spark_group_source."):
        if module.name.endswith("errors"):
            importlib.import_module(module.name)
    return [base, *(found for child in base.__subclasses__() for found in error_classes(child))]


def drawn(base: type[GroupSourceError], indent: str = "") -> list[str]:
    """The lines of the tree below a class, as the docstring of ``errors`` draws them, without descriptions."""
    children = [each for each in base.__subclasses__() if each.__module__ == errors.__name__]
    lines = []
    for child in children:
        corner, below = ("└── ", "    ") if child is children[-1] else ("├── ", "│   ")
        lines += [f"{indent}{corner}{child.__name__}", *drawn(child, indent + below)]
    return lines


def test_the_docstring_draws_the_tree_of_errors() -> None:
    tree = re.findall(r"^ {4}([ │]*[├└]── \w+) {2,}\S", inspect.getdoc(errors) or "", re.M)
    assert tree == drawn(GroupSourceError)


def strings_of_the_package() -> str:
    """All strings in the code of the package, one a line, with values left out."""
    nodes = [node for path in PACKAGE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_an_error_ends_with_the_command_that_explains_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in error_classes():
        error = kind.__new__(kind)
        GroupSourceError.__init__(error, "It happened.", "Do this.")
        command = f"python -m spark_group_source explain {kind.code}"
        assert str(error) == f"[{kind.code}] It happened. Do this. For details run: {command}"
        assert main(command.split()[3:]) == 0
        assert capsys.readouterr().out == f"{kind.code}\n\n{sections()[kind.code]}\n"


def test_the_page_has_one_section_for_each_code_and_no_other() -> None:
    assert sorted(CODES) == sorted({kind.code for kind in error_classes()})
    assert list(sections()) == CODES


def test_without_a_code_the_command_prints_one_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "[data_loss]."]) == 0
    assert capsys.readouterr().out.startswith("DATA_LOSS\n\nKafka no longer has records")
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == CODES
    assert all(line.endswith(".") for line in lines), "the first line of a section is one sentence"


def test_an_unknown_code_is_an_error_that_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    for written, nearest in (("DATALOSS", "DATA_LOSS"), ("OPTION", "INVALID_OPTION"), ("GROUP", "GROUP_REJECTED")):
        assert main(["explain", written]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert f"No error has the code '{written}'. The nearest code is {nearest}." in shown.err


def test_a_code_like_no_other_leads_to_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NOPE"]) == 2
    assert "No error has the code 'NOPE'. Without a code, the command lists all codes." in capsys.readouterr().err


def test_a_closed_pipe_ends_the_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "spark_group_source", "explain"]
    try:
        ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_quoted_message_is_in_the_code() -> None:
    strings = strings_of_the_package()
    fragments = [each for quote in QUOTES for each in re.split(r"\.\.\.|\d+", quote) if not KAFKA_NAMES.fullmatch(each)]
    assert [each for each in fragments if each.strip(" ,") not in strings] == []

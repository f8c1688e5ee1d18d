"""``docs/api.md`` has the public names with their docstrings; ``python -m tests.unit.test_api_docs`` writes them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from tests.unit.test_error_docs import error_classes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
PLACE = re.compile(r"(<!-- (\S+) -->\n).*?(?=\n<!--|\n## |\Z)", re.S)
MANY = 10
"""A class with more members has only their signatures on the page; ``help`` shows the rest."""
PARAMETER = re.compile(r"^    (\w+): (.*(?:\n {5,}.*)*)", re.M)


def entry(name: str) -> str:
    """A public name: its signature, the summary of its docstring, its parameters or attributes, and its members."""
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    _, _, listed = re.split(r"\n(Args|Attributes):\n", f"{inspect.getdoc(found)}\n\nArgs:\n", maxsplit=1)
    items = [
        f"- `{each}`: {plain(text)}" for each, text in PARAMETER.findall(re.split(r"\n(?=[A-Z]\w+:\n)", listed)[0])
    ]
    items += members(found) if inspect.isclass(found) else []
    title = f"**`{attribute}{signature(found)}`** from `{module}`: {summary(found)}"
    return "\n".join([wrapped(title), "", *map(wrapped, items)]).rstrip()


def wrapped(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def members(of: type) -> list[str]:
    """The methods and properties that the package defines for a class; those of Spark's listeners are not for users."""
    public: dict[str, Any] = {}
    for each in of.__mro__:
        if each.__module__.startswith("spark_group_source."):
            public = {
                name: member for name, member in vars(each).items() if name[0] != "_" and name[:2] != "on"
            } | public
    kept = {name: each for name, each in public.items() if callable(each) or isinstance(each, property)}
    if len(kept) > MANY:
        return ["- " + ", ".join(f"`{name}{signature(each)}`" for name, each in kept.items())]
    return [f"- `{name}{signature(each)}`: {summary(each)}" for name, each in kept.items()]


def signature(of: Any) -> str:
    """The parameters with their defaults, without annotations; nothing for attributes and plain data."""
    if isinstance(of, property) or dataclasses.is_dataclass(of):
        return ""
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(of).parameters.values()]
    shown = [each for each in parameters if each.name not in ("self", "now", "clock")]
    return str(inspect.Signature(shown)).replace("'", '"')


def summary(of: Any) -> str:
    return plain(re.sub(r"::$", ".", (inspect.getdoc(of) or "").partition("\n\n")[0]))


def plain(text: str) -> str:
    """Docstring markup as Markdown, on one line."""
    return " ".join(re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text.replace("``", "`")).split())


def errors() -> str:
    classes = [each for each in error_classes() if each.__module__ == "spark_group_source.errors"]
    return "\n".join(f"- `{each.__name__}`: `{each.code}`" for each in classes)


def with_docstrings(text: str) -> str:
    """The page with the docstrings of now behind each comment that names a public name."""
    return PLACE.sub(lambda found: found[1] + (errors() if found[2] == "errors" else entry(found[2])) + "\n", text)


def test_the_page_has_the_docstrings_of_the_code() -> None:
    assert with_docstrings(PAGE.read_text()) == PAGE.read_text()


def test_every_exported_name_is_on_the_page() -> None:
    named = set(re.findall(r"<!-- (\S+) -->", PAGE.read_text()))
    for module in ("spark_group_source", "spark_group_source.exactly_once", "spark_group_source.testing"):
        exported = {f"{module}.{name}" for name in importlib.import_module(module).__all__ if not name.startswith("_")}
        assert exported <= named


def test_each_description_is_whole_sentences() -> None:
    cut_off = []
    for name in re.findall(r"<!-- (\S+\.\S+) -->", PAGE.read_text()):
        described = re.findall(r"^- `\w+`: .*(?:\n  .*)*", entry(name), re.M)
        cut_off += [f"{name}: {item}" for item in described if not item.endswith(".")]
    assert cut_off == []


if __name__ == "__main__":
    PAGE.write_text(with_docstrings(PAGE.read_text()))

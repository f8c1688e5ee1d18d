"""``docs/errors.md`` has a section for each error code, and errors name theirs."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import spark_group_source
from spark_group_source.errors import DOCS, GroupSourceError

REPOSITORY = Path(__file__).resolve().parents[2]
SECTIONS = re.findall(r"^## (.+)$", (REPOSITORY / DOCS).read_text(), re.M)


def kinds(base: type[GroupSourceError] = GroupSourceError) -> list[type[GroupSourceError]]:
    """All errors of the package, those of its testing kit among them."""
    for module in pkgutil.walk_packages(spark_group_source.__path__, "spark_group_source."):
        if module.name.endswith("errors"):
            importlib.import_module(module.name)
    return [base, *(each for child in base.__subclasses__() for each in kinds(child))]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_an_error_ends_with_where_its_code_is_explained(kind: type[GroupSourceError]) -> None:
    error = kind.__new__(kind)
    GroupSourceError.__init__(error, "It happened.", "Do this.")
    assert str(error) == f"[{kind.code}] It happened. Do this. See docs/errors.md#{kind.code.lower()}."
    assert kind.code in SECTIONS


def test_every_section_is_of_an_error() -> None:
    assert sorted(SECTIONS) == sorted({kind.code for kind in kinds()})

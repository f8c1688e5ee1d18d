"""The mutants of the simulation fit the package as it is now."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import spark_group_source
from tests.simulation.mutants import MUTANTS, Edit, Mutant, mutated

PACKAGE = Path(spark_group_source.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.name)
def test_a_mutant_changes_files_that_still_compile(mutant: Mutant) -> None:
    changed = mutated(mutant, PACKAGE)
    assert changed
    for file, text in changed.items():
        assert text != ast.unparse(ast.parse(file.read_text(encoding="utf-8")))
        compile(text, str(file), "exec")


def test_mutants_have_names_of_their_own_and_break_each_sentence() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.sentence for mutant in MUTANTS} == set(range(1, 11))


@pytest.mark.parametrize(
    ("edit", "code", "changed"),
    [
        (Edit("f(_1, ...)", "g(...)", "A.b"), "f(1, 2, c=f(3))", "g(2, c=g())"),
        (Edit("a == _1", "True", "A.b"), "if a != 2: return", "if not True:\n    return"),
        (Edit("x = _1", "x = 1; y = _1", "A.b"), "x = z", "x = 1\ny = z"),
        (Edit("f(_1)", "_1", "A.b"), "(f(c)\n  or d)", "c or d"),
        (Edit("f(_1)", "pass", "A.b"), "f(c)", "pass"),
    ],
)
def test_an_edit_replaces_code_however_it_is_formatted(tmp_path: Path, edit: Edit, code: str, changed: str) -> None:
    file = tmp_path / "module.py"
    file.write_text("class A:\n  def b(self):\n    " + code + "\n  def c(self):\n    " + code)
    found = mutated(Mutant("", 1, "", (edit,)), tmp_path)[file]
    body = ast.parse(found).body[0]
    assert isinstance(body, ast.ClassDef)
    first, second = body.body
    assert isinstance(first, ast.FunctionDef)
    assert isinstance(second, ast.FunctionDef)
    assert "\n".join(map(ast.unparse, first.body)) == changed
    assert "\n".join(map(ast.unparse, second.body)) == ast.unparse(ast.parse(code))


def test_code_that_is_not_there_or_not_unique_is_named(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("a(1)\na(2)\n")
    for old, count in (("a(3)", 0), ("a(_1)", 2)):
        with pytest.raises(ValueError, match=rf"M: stands {count} times in the package"):
            mutated(Mutant("M", 1, "", (Edit(old, "b"),)), tmp_path)

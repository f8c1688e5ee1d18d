"""The mutants of the simulation fit the package as it is now."""

from __future__ import annotations

from pathlib import Path

import pytest

import spark_group_source
from tests.simulation.mutants import MUTANTS, Mutant, apply

PACKAGE = Path(spark_group_source.__file__).parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_files_that_still_compile(mutant: Mutant, tmp_path: Path) -> None:
    files = {name for name, _, _ in mutant.edits}
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((PACKAGE / name).read_bytes())

    apply(mutant, tmp_path)

    for name in files:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert text != (PACKAGE / name).read_text(encoding="utf-8")
        compile(text, name, "exec")


def test_mutants_are_many_and_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 45
    assert {mutant.sentence for mutant in MUTANTS} == set(range(1, 11))

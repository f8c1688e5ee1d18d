"""The mutants of the simulation fit the package as it is now."""

from __future__ import annotations

from pathlib import Path

import spark_group_source
from tests.simulation.mutants import MUTANTS, apply

PACKAGE = Path(spark_group_source.__file__).parent


def test_a_mutant_changes_files_that_still_compile(tmp_path: Path) -> None:
    for mutant in MUTANTS:
        files = {name: (PACKAGE / name).read_text(encoding="utf-8") for name, _, _ in mutant.edits}
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        apply(mutant, tmp_path)
        for name, text in files.items():
            changed = (tmp_path / name).read_text(encoding="utf-8")
            assert changed != text, mutant.name
            compile(changed, name, "exec")


def test_mutants_are_many_and_have_names_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 45
    assert {mutant.sentence for mutant in MUTANTS} == set(range(1, 11))

"""Python uses bytecode in PySpark's zip if it matches, and ignores it otherwise."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from tests.bytecode import add_bytecode
from tests.unit.new_process import run_python

SOURCES = {
    "tool/__init__.py": "",
    "tool/work.py": "ANSWER = 42\n\ndef fail():\n    raise ValueError\n",
    "tool/later.py": "ANSWER = 43\n",
    "tool/tests/__init__.py": "",
    "tool/tests/test_work.py": "ANSWER = 44\n",
    "tool/notes.txt": "no module",
}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "python" / "lib" / "tool.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in SOURCES.items():
            target.writestr(name, text)
    return path


def python(archive: Path, code: str, **environment: str) -> str:
    """The output of this code in a process with the zip first on its path, as Spark starts them."""
    return run_python(code, env={"PYTHONPATH": str(archive), **environment}).stdout


def loaded(archive: Path, **environment: str) -> str:
    return python(archive, "import tool.work as m; print(m.ANSWER, m.__file__)", **environment).strip()


def rewrite(archive: Path, changed: dict[str, bytes]) -> None:
    with zipfile.ZipFile(archive) as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in (members | changed).items():
            target.writestr(name, data)


def test_modules_are_loaded_from_bytecode_in_any_time_zone(archive: Path) -> None:
    assert loaded(archive) == f"42 {archive}/tool/work.py"
    assert add_bytecode(archive) == 3
    before = archive.read_bytes()
    assert add_bytecode(archive) == 0, "adding it again changes nothing"
    assert archive.read_bytes() == before
    assert list(archive.parent.iterdir()) == [archive]
    for zone in ("UTC", "Asia/Tokyo"):
        assert loaded(archive, TZ=zone) == f"42 {archive}/tool/work.pyc"
    code = "import traceback, tool.work\ntry: tool.work.fail()\nexcept ValueError: print(traceback.format_exc())"
    assert re.search(rf'"{archive}/tool/work.py", line 4, in fail\n +raise ValueError', python(archive, code))


def test_changed_source_is_used_instead_of_its_bytecode(archive: Path) -> None:
    add_bytecode(archive)
    rewrite(archive, {"tool/work.py": b"ANSWER = 7\n"})
    assert loaded(archive).startswith("7 ")


def test_another_pythons_bytecode_is_ignored_and_this_pythons_can_be_added(archive: Path) -> None:
    add_bytecode(archive)
    with zipfile.ZipFile(archive) as source:
        others = {each: b"\0\0\r\n" + source.read(each)[4:] for each in source.namelist() if each.endswith(".pyc")}
    rewrite(archive, others)
    assert loaded(archive) == f"42 {archive}/tool/work.py"
    with pytest.warns(UserWarning, match="Duplicate name"):
        assert add_bytecode(archive) == 3
    assert loaded(archive) == f"42 {archive}/tool/work.pyc"

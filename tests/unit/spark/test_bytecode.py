"""Bytecode that is added to PySpark's zip is used where it fits, and where it does not nothing changes."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from spark_group_source.spark import bytecode
from spark_group_source.spark.bytecode import add_bytecode, spark_zips

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
    place = tmp_path / "python" / "lib" / "tool.zip"
    place.parent.mkdir(parents=True)
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as made:
        for name, text in SOURCES.items():
            made.writestr(name, text)
    return place


def python(archive: Path, code: str, **environment: str) -> str:
    """What the code prints in a process that has the zip first on its path, as those that Spark starts."""
    given = {"PYTHONPATH": str(archive), **environment}
    return subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True).stdout


def loaded(archive: Path, module: str = "work", **environment: str) -> str:
    return python(archive, f"import tool.{module} as m; print(m.ANSWER, m.__file__)", **environment).strip()


def rewrite(archive: Path, changed: dict[str, bytes]) -> None:
    with zipfile.ZipFile(archive) as source:
        held = {each: source.read(each) for each in source.namelist()}
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for each, data in (held | changed).items():
            target.writestr(each, data)


def test_modules_are_loaded_from_bytecode_whatever_the_time_zone(archive: Path) -> None:
    assert loaded(archive) == f"42 {archive}/tool/work.py"
    assert add_bytecode(archive) == 3
    assert loaded(archive) == f"42 {archive}/tool/work.pyc"
    assert loaded(archive, TZ="Asia/Tokyo") == f"42 {archive}/tool/work.pyc"
    assert loaded(archive, "tests.test_work") == f"44 {archive}/tool/tests/test_work.py"


def test_tracebacks_show_the_source_in_the_zip(archive: Path) -> None:
    add_bytecode(archive)
    code = "import traceback, tool.work\ntry: tool.work.fail()\nexcept ValueError: print(traceback.format_exc())"
    assert re.search(rf'"{archive}/tool/work.py", line 4, in fail\n +raise ValueError', python(archive, code))


def test_a_second_time_changes_nothing(archive: Path) -> None:
    add_bytecode(archive)
    before = archive.read_bytes()
    assert add_bytecode(archive) == 0
    assert archive.read_bytes() == before
    assert list(archive.parent.iterdir()) == [archive]


def test_source_that_was_changed_is_what_runs(archive: Path) -> None:
    add_bytecode(archive)
    rewrite(archive, {"tool/work.py": b"ANSWER = 7\n"})
    assert loaded(archive).startswith("7 ")


def test_another_pythons_bytecode_is_passed_over_and_this_ones_can_be_added(archive: Path) -> None:
    add_bytecode(archive)
    with zipfile.ZipFile(archive) as source:
        others = {each: b"\0\0\r\n" + source.read(each)[4:] for each in source.namelist() if each.endswith(".pyc")}
    rewrite(archive, others)
    assert loaded(archive) == f"42 {archive}/tool/work.py"
    with pytest.warns(UserWarning, match="Duplicate name"):
        assert add_bytecode(archive) == 3
    assert loaded(archive) == f"42 {archive}/tool/work.pyc"


def test_a_running_process_goes_on_loading_from_the_zip(archive: Path) -> None:
    code = (
        "import sys; from tool import work; print('ready', flush=True); input();"
        "from tool import later; print(later.ANSWER, later.__file__)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(archive)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        add_bytecode(archive)
        told, _ = process.communicate("\n")
    assert told.strip() == f"43 {archive}/tool/later.py"


def test_the_zips_are_those_of_spark_home_or_of_the_installed_pyspark(
    archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyspark

    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert Path(pyspark.__path__[0], "python", "lib", "pyspark.zip") in spark_zips()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark_zips() == [archive]
    bytecode.main()
    bytecode.main()
    assert capsys.readouterr().out == f"{archive}: bytecode of 3 modules added\n{archive}: its bytecode is there\n"
    with zipfile.ZipFile(archive) as grown:
        assert grown.read("tool/work.pyc")[:4] == MAGIC_NUMBER


def test_where_there_is_nothing_to_add_to_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="There is no zip of PySpark in .*SPARK_HOME"):
        bytecode.main()

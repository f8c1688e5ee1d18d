"""Python uses bytecode in PySpark's zip if it matches, and ignores it otherwise."""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from spark_group_source.spark import bytecode
from spark_group_source.spark.bytecode import add_bytecode, spark_zips
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


def test_bytecode_is_not_compressed_and_new_processes_do_not_list_the_tests(archive: Path) -> None:
    """Up to Python 3.12, a worker reads the zip's directory seventeen times, and half of it were PySpark's tests."""
    add_bytecode(archive)
    with zipfile.ZipFile(archive) as enlarged:
        assert enlarged.getinfo("tool/work.pyc").compress_type == zipfile.ZIP_STORED
        listed = enlarged.namelist()
    kept = [name for name in SOURCES if "/tests/" not in name]
    assert sorted(listed) == sorted([*kept, *(f"{name}c" for name in kept if name.endswith(".py"))])


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


def test_a_running_process_can_still_load_from_the_zip(archive: Path) -> None:
    code = (
        "import sys; from tool import work; print('ready', flush=True); input();"
        "from tool import later; print(later.ANSWER, later.__file__);"
        "from tool.tests import test_work; print(test_work.ANSWER)"
    )
    command, env = [sys.executable, "-c", code], {"PYTHONPATH": str(archive)}
    with Popen(command, env=env, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        add_bytecode(archive)
        output, _ = process.communicate("\n")
    assert output == f"43 {archive}/tool/later.py\n44\n"


def test_the_zips_come_from_spark_home_or_the_installed_pyspark(
    archive: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyspark

    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert Path(pyspark.__path__[0], "python", "lib", "pyspark.zip") in spark_zips()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark_zips() == [archive]
    bytecode.main()
    bytecode.main()
    assert capsys.readouterr().out == f"{archive}: bytecode of 3 modules added\n{archive}: has bytecode already\n"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match="There is no zip of PySpark in .*SPARK_HOME"):
        bytecode.main()

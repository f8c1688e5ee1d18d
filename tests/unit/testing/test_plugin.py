"""The pytest plugin costs nothing until it is used, and says what is missing where it cannot do its work."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_group_source.testing import EmbeddedKafka, plugin
from spark_group_source.testing.errors import EmbeddedKafkaError

REPOSITORY = Path(__file__).resolve().parents[3]
TESTING = REPOSITORY / "spark_group_source" / "testing"
PATIENCE_S = 90.0

WHAT_IS_LOADED = """
import sys
def test_what_is_loaded():
    heavy = {"pyspark", "pyarrow", "numpy", "py4j", "pandas"}
    assert "spark_group_source.testing.plugin" in sys.modules
    assert not heavy & {name.split(".")[0] for name in sys.modules}
    assert not any(name.startswith("kafka.") for name in sys.modules)  # the package itself runs on its first use
"""
NO_PYTEST = """
import importlib, sys
sys.modules["pytest"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
WANTS_BOTH = """
def test_first(embedded_kafka): pass
def test_second(kafka_topic): pass
def test_third(kafka_spark): pass
"""


def run_pytest(project: Path, source: str) -> tuple[int, str]:
    """Runs a test module with the plugin and no other in a project of its own; returns exit code and output."""
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", plugin.__name__]
    environment = {**os.environ, "COLUMNS": "400"}  # so that nothing that is told is cut off
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_loading_the_plugin_imports_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what others import is not the question
    code, told = run_pytest(tmp_path, WHAT_IS_LOADED)
    assert code == 0, told


def test_all_but_the_plugin_can_be_imported_without_pytest() -> None:
    modules = [path for path in TESTING.rglob("*.py") if path.stem not in ("plugin", "__init__")]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in modules]
    assert "spark_group_source.testing.spark" in names
    subprocess.run([sys.executable, "-c", NO_PYTEST, *names], cwd=REPOSITORY, timeout=PATIENCE_S, check=True)


def test_the_plugin_has_prefixed_fixtures_and_none_that_runs_unrequested() -> None:
    functions = [
        node for node in ast.parse(Path(plugin.__file__).read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    public = [each for each in functions if not each.name.startswith("_")]
    assert all(re.match("kafka_|embedded_kafka|run_available_now$|await_query_end$", each.name) for each in public)
    for each in public:
        assert ast.unparse(each.decorator_list[0]) in ("pytest.fixture", "pytest.fixture(scope='session')")
        assert ast.get_docstring(each), "it is what `pytest --fixtures` shows"


def test_the_entry_point_has_its_modules_name_so_that_pytest_loads_it_once() -> None:
    assert f'[project.entry-points.pytest11]\n"{plugin.__name__}" = "{plugin.__name__}"\n' in (
        REPOSITORY / "pyproject.toml"
    ).read_text("utf-8")


def test_without_java_each_test_that_needs_it_fails_and_none_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", str(tmp_path))
    code, told = run_pytest(tmp_path, WANTS_BOTH)
    assert code == 1
    assert "3 errors" in told
    for name in ("first", "second", "third"):
        assert re.search(f"^ERROR test_it.py::test_{name} - .*Java was not found: JAVA_HOME is ", told, re.MULTILINE), (
            told
        )
    assert "Install Java 17 or later" in told
    assert "Traceback" not in told
    assert "local_spark.py" not in told


def give_java(monkeypatch: pytest.MonkeyPatch, home: Path, script: str) -> None:
    """Makes ``script`` the machine's Java."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))


def test_without_a_network_the_error_shows_the_attempts_and_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_java(monkeypatch, tmp_path / "java", "echo connection refused; exit 1")
    monkeypatch.delenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", raising=False)
    monkeypatch.setenv("SPARK_GROUP_SOURCE_CACHE", str(tmp_path / "cache"))
    code, told = run_pytest(tmp_path, "def test_it(embedded_kafka): pass\n")
    assert code == 1
    assert "could not be fetched from Maven Central in 3 attempts. Ivy said: exit code 1: connection refused" in told
    assert "SPARK_GROUP_SOURCE_KAFKA_LIBS" in told


def test_the_error_of_an_old_java_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "java.lang.UnsupportedClassVersionError: this Java only recognizes versions up to 55.0"
    give_java(monkeypatch, tmp_path / "java", f"echo '{says}' >&2; echo '  at somewhere' >&2; exit 1")
    monkeypatch.setenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", str(tmp_path))
    with pytest.raises(EmbeddedKafkaError, match=r"java is too old for this Kafka: .* 55\.0\. Install Java 17"):
        EmbeddedKafka().open()

"""The pytest plugin costs nothing until it is used, and says what is missing where it cannot do its work."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_group_source.testing import EmbeddedKafka, plugin
from spark_group_source.testing.errors import EmbeddedKafkaError

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE_S = 90.0

TESTS = """
import sys
def test_what_is_loaded():
    heavy = {"pyspark", "pyarrow", "numpy", "py4j", "pandas"}
    assert "spark_group_source.testing.plugin" in sys.modules
    assert not heavy & {name.split(".")[0] for name in sys.modules}
    assert not any(name.startswith("kafka.") for name in sys.modules)  # the package itself runs on its first use
def test_first(embedded_kafka): pass
def test_second(kafka_topic): pass
def test_third(kafka_spark): pass
"""
NO_PYTEST = """
import importlib, sys
sys.modules["pytest"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_all_but_the_plugin_can_be_imported_without_pytest() -> None:
    modules = [path for path in Path(plugin.__file__).parent.rglob("*.py") if path.stem not in ("plugin", "__init__")]
    names = [".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in modules]
    assert "spark_group_source.testing.spark" in names
    subprocess.run([sys.executable, "-c", NO_PYTEST, *names], cwd=REPOSITORY, timeout=PATIENCE_S, check=True)


def test_the_entry_point_has_its_modules_name_so_that_pytest_loads_it_once() -> None:
    assert f'[project.entry-points.pytest11]\n"{plugin.__name__}" = "{plugin.__name__}"\n' in (
        REPOSITORY / "pyproject.toml"
    ).read_text("utf-8")


def test_loading_the_plugin_imports_nothing_heavy_and_without_java_each_test_that_needs_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # what others import is not the question
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "400")  # so that nothing that is told is cut off
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", plugin.__name__]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    told = done.stdout + done.stderr
    assert done.returncode == 1
    assert "1 passed, 3 errors" in told
    for name in ("first", "second", "third"):
        assert re.search(f"(?m)^ERROR test_it.py::test_{name} - .*Java was not found: JAVA_HOME is ", told), told
    assert "Install Java 17 or later" in told
    assert "Traceback" not in told
    assert "local_spark.py" not in told


def test_the_error_of_an_old_java_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "java.lang.UnsupportedClassVersionError: this Java only recognizes versions up to 55.0"
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2; echo '  at somewhere' >&2; exit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", str(tmp_path))
    with pytest.raises(EmbeddedKafkaError, match=r"java is too old for this Kafka: .* 55\.0\. Install Java 17"):
        EmbeddedKafka().open()

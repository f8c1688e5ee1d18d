"""Fetching of Kafka's jars, without a network: Ivy is a script that does what the test says."""

from __future__ import annotations

import stat
import sys
import threading
from pathlib import Path

import pytest

from spark_group_source.testing import ivy
from spark_group_source.testing.errors import EmbeddedKafkaError

RETRIEVES = """
place = pathlib.Path(sys.argv[sys.argv.index("-retrieve") + 1]).parent
place.mkdir(parents=True, exist_ok=True)
(place / "kafka_2.13-9.9.9.jar").write_text("jar")
"""


class FakeJava:
    """A ``java`` that logs its calls and runs a few lines of Python."""

    def __init__(self, home: Path) -> None:
        self._script = home / "bin" / "java"
        self._calls = home / "calls"
        self._script.parent.mkdir(parents=True)
        self.does(RETRIEVES)

    def does(self, lines: str) -> None:
        log = f"open({str(self._calls)!r}, 'a').write(repr(sys.argv[1:]) + chr(10))"
        self._script.write_text(f"#!{sys.executable}\nimport os, pathlib, sys\n{log}\n{lines}")
        self._script.chmod(self._script.stat().st_mode | stat.S_IEXEC)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", raising=False)
    monkeypatch.setenv("SPARK_GROUP_SOURCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeJava:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return FakeJava(tmp_path / "java")


def test_the_ivy_command_includes_bundles_and_the_default_configuration(fake_java: FakeJava) -> None:
    command = ivy.ivy_command(Path("ivy.xml"), Path("libs"), Path("cache"))
    assert command[command.index("-types") :][:3] == ["-types", "jar", "bundle"]
    assert command[command.index("-confs") + 1] == "default"
    assert command[command.index("-retrieve") + 1] == "libs/[artifact]-[revision].[ext]"


def test_jars_are_fetched_once(cache: Path, fake_java: FakeJava) -> None:
    first, second = ivy.kafka_libs("9.9.9"), ivy.kafka_libs("9.9.9")
    assert first == second == cache / "kafka-9.9.9"
    assert [jar.name for jar in first.iterdir()] == ["kafka_2.13-9.9.9.jar"]
    assert len(fake_java.calls) == 1
    assert ivy.kafka_libs("9.9.8") != first


def test_several_processes_download_once(cache: Path, fake_java: FakeJava) -> None:
    fake_java.does("import time; time.sleep(0.2)" + RETRIEVES)
    threads = [threading.Thread(target=ivy.kafka_libs, args=("9.9.9",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (cache / "kafka-9.9.9").is_dir()
    assert len(fake_java.calls) == 1


@pytest.mark.parametrize("says", ["connection refused by the mirror", ":: FAILED DOWNLOADS ::"])
def test_a_failed_download_is_retried_and_the_error_has_ivys_output(
    cache: Path, fake_java: FakeJava, says: str
) -> None:
    """Of a single failed jar, too, after which Ivy exits with 0."""
    code = 0 if "FAILED" in says else 1
    fake_java.does(f"{RETRIEVES}print({says!r}); sys.exit({code})")
    expected = rf"Maven Central in {ivy.ATTEMPTS} attempts\. Ivy said: .*{says}.*SPARK_GROUP_SOURCE_KAFKA_LIBS"
    with pytest.raises(EmbeddedKafkaError, match=f"(?s){expected}"):
        ivy.kafka_libs("9.9.9")
    assert len(fake_java.calls) == ivy.ATTEMPTS


def test_an_interrupted_download_never_passes_for_a_complete_download(cache: Path, fake_java: FakeJava) -> None:
    fake_java.does(RETRIEVES + "sys.exit(1)")
    with pytest.raises(EmbeddedKafkaError):
        ivy.kafka_libs("9.9.9")
    assert not (cache / "kafka-9.9.9").exists()
    fake_java.does(RETRIEVES)
    assert ivy.kafka_libs("9.9.9").is_dir()


def test_configured_libs_need_no_network(monkeypatch: pytest.MonkeyPatch, cache: Path, fake_java: FakeJava) -> None:
    monkeypatch.setenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", "/opt/kafka/libs")
    assert ivy.kafka_libs() == Path("/opt/kafka/libs")
    assert fake_java.calls == []

"""Jars, ports, properties, locks and the watchdog: what an embedded Kafka stands on, without one."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_group_source.testing import ivy
from spark_group_source.testing.broker_cluster import new_cluster_id, parse_properties
from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.file_lock import file_lock
from spark_group_source.testing.ports import HOST, free_ports
from tests.waiting import eventually

PARENT = """
import pathlib, subprocess, sys, time
from spark_group_source.testing.watchdog import Watchdog
watchdog = Watchdog(pathlib.Path(sys.argv[1]))
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
for child in children:
    watchdog.watch(child.pid)
watchdog.forget(children[1].pid)
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_watchdog_ends_the_children_of_a_killed_parent_and_deletes_its_directory(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(directory)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    watched, forgotten = map(int, parent.stdout.readline().split())
    parent.stdout.close()
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait(20.0)
        eventually(lambda: not runs(watched))
        assert runs(forgotten), "what was forgotten is not the watchdog's to end"
    finally:
        os.kill(forgotten, signal.SIGKILL)
    eventually(lambda: not directory.exists())


def test_free_ports_are_different_and_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.socket() as taken:
        taken.bind((HOST, ports[0]))
        taken.listen()
        monkeypatch.setattr("random.sample", lambda *_: [ports[0], ports[1], ports[2]])
        assert free_ports(1) == [ports[1]]
    monkeypatch.setattr("random.sample", lambda *_: [])
    with pytest.raises(EmbeddedKafkaError, match="Only 0"):
        free_ports(1)


def test_the_wait_for_a_lock_ends_at_its_timeout(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path, 1.0), pytest.raises(EmbeddedKafkaError, match="Another process"), file_lock(path, 0.0):
        pass
    with file_lock(path, 0.0):
        pass


def test_a_line_that_is_not_a_property_is_rejected() -> None:
    with pytest.raises(ValueError, match="no equals sign"):
        parse_properties("# fine\n\na=b\nno equals sign\n")


def test_no_cluster_id_looks_like_an_option_of_kafkas_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x04" + bytes(15))])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert new_cluster_id() == "BAAAAAAAAAAAAAAAAAAAAA"


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
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(ivy.kafka_libs, ["9.9.9"] * 4)) == {cache / "kafka-9.9.9"}
    assert len(fake_java.calls) == 1


@pytest.mark.parametrize("says", ["connection refused by the mirror", ":: FAILED DOWNLOADS ::"])
def test_a_failed_download_is_retried_and_the_error_has_ivys_output_and_it_never_passes_for_a_complete_one(
    cache: Path, fake_java: FakeJava, says: str
) -> None:
    """Of a single failed jar, too, after which Ivy exits with 0."""
    code = 0 if "FAILED" in says else 1
    fake_java.does(f"{RETRIEVES}print({says!r}); sys.exit({code})")
    expected = rf"Maven Central in {ivy.ATTEMPTS} attempts\. Ivy said: .*{says}.*SPARK_GROUP_SOURCE_KAFKA_LIBS"
    with pytest.raises(EmbeddedKafkaError, match=f"(?s){expected}"):
        ivy.kafka_libs("9.9.9")
    assert len(fake_java.calls) == ivy.ATTEMPTS
    assert not (cache / "kafka-9.9.9").exists()
    fake_java.does(RETRIEVES)
    assert ivy.kafka_libs("9.9.9").is_dir()


def test_configured_libs_need_no_network(monkeypatch: pytest.MonkeyPatch, cache: Path, fake_java: FakeJava) -> None:
    monkeypatch.setenv("SPARK_GROUP_SOURCE_KAFKA_LIBS", "/opt/kafka/libs")
    assert ivy.kafka_libs() == Path("/opt/kafka/libs")
    assert fake_java.calls == []

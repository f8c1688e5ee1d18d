"""Ports, properties, locks and the watchdog: what an embedded Kafka stands on, without one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from spark_group_source.testing.broker import HOST, free_ports, new_cluster_id, parse_properties
from spark_group_source.testing.errors import EmbeddedKafkaError
from spark_group_source.testing.ivy import file_lock
from tests.waiting import eventually

TIMEOUT_S = 20.0

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
        parent.wait(TIMEOUT_S)
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

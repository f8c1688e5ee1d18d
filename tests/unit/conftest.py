"""What unit tests share."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import settings

from spark_group_source.wire.waiting import WakeupPipe
from tests.certificates import Authority
from tests.unit.hand_clock import Hand

SocketPair = tuple[socket.socket, socket.socket]
NewSocketPair = Callable[[], SocketPair]

# How long an example takes is the machine's business.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture
def hand(monkeypatch: pytest.MonkeyPatch) -> Hand:
    """Takes the place of ``time.sleep`` too."""
    made = Hand()
    monkeypatch.setattr("time.sleep", made.sleep)
    return made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine without settings of AWS."""
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return monkeypatch


@pytest.fixture
def new_socket_pair() -> Iterator[NewSocketPair]:
    """Returns both ends of a new connection."""
    with ExitStack() as opened:

        def connected() -> SocketPair:
            ours, theirs = socket.socketpair()
            return opened.enter_context(ours), opened.enter_context(theirs)

        yield connected


@pytest.fixture
def wakeup() -> Iterator[WakeupPipe]:
    with closing(WakeupPipe()) as pipe:
        yield pipe

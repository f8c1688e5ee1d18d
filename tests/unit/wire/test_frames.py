"""Responses that arrive in pieces of any size are received whole."""

from __future__ import annotations

import socket
import threading

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.wire.frames import MAX_FRAME, FrameReader
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from tests.unit.conftest import NewSocketPair, SocketPair
from tests.unit.wire.messages import framed
from tests.unit.wire_options import LONG, after

BODY = bytes(range(256)) * 2048
PIECE = 4096


@pytest.fixture
def pair(new_socket_pair: NewSocketPair) -> SocketPair:
    return new_socket_pair()


@pytest.fixture
def reader() -> FrameReader:
    made = FrameReader("peer")
    made.max_frame = MAX_FRAME
    return made


def receive(reader: FrameReader, sock: socket.socket, deadline: Deadline | None = None) -> bytes:
    return bytes(reader.receive(sock, deadline or after())[0])


def in_pieces(to: socket.socket, sent: bytes) -> threading.Thread:
    """Sends in pieces from another thread."""

    def send() -> None:
        for at in range(0, len(sent), PIECE):
            to.sendall(sent[at : at + PIECE])
            threading.Event().wait(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("interruptible", [False, True])
def test_a_large_response_that_comes_in_pieces_is_received_whole(
    pair: SocketPair, reader: FrameReader, wakeup: WakeupPipe, interruptible: bool
) -> None:
    ours, theirs = pair
    deadline = Deadline.after(LONG, wakeup=wakeup if interruptible else None)
    for _ in range(2):
        sending = in_pieces(theirs, framed(BODY))
        assert receive(reader, ours, deadline) == BODY
        sending.join()


def test_a_short_response_after_a_large_one_takes_no_byte_of_the_next(pair: SocketPair, reader: FrameReader) -> None:
    ours, theirs = pair
    sizes = [3 * 2**20 + 5, 4, 2**18, 2**20 + 1, 5]
    sending = threading.Thread(target=theirs.sendall, args=(b"".join(framed(b"v" * size) for size in sizes),))
    sending.start()
    assert [len(receive(reader, ours)) for _ in sizes] == sizes
    sending.join()


def test_a_response_after_an_interrupted_wait_is_complete(
    pair: SocketPair, reader: FrameReader, wakeup: WakeupPipe
) -> None:
    ours, theirs = pair
    theirs.sendall(framed(BODY)[: 3 * PIECE])
    threading.Timer(0.05, wakeup.set).start()
    with pytest.raises(Interrupted):
        receive(reader, ours, Deadline.after(LONG, wakeup=wakeup))
    sending = in_pieces(theirs, framed(BODY)[3 * PIECE :])
    assert receive(reader, ours) == BODY
    sending.join()

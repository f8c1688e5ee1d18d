"""Large responses are received in few calls, and no wait lasts longer because of that."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.wire import low_water
from spark_group_source.wire.frames import MAX_FRAME, FrameReader
from spark_group_source.wire.low_water import MIN_MARK, NO_MARK, LowWaterMark
from spark_group_source.wire.waiting import Interrupted, WakeupPipe
from tests.unit.wire.messages import framed
from tests.unit.wire_options import LONG, after
from tests.waiting import eventually

BODY = bytes(range(256)) * 2048
PIECE = 4096

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer as Buffer

linux_only = pytest.mark.skipif(not low_water.SUPPORTED, reason="the system has no low-water mark, or it is not used")


class CountingSocket(socket.socket):
    """A TCP socket that counts what it receives."""

    calls = 0
    received = 0

    def recv_into(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        self.calls += 1
        received = super().recv_into(buffer, nbytes, flags)
        self.received += received
        return received

    @property
    def mark(self) -> int:
        """The low-water mark that the system has."""
        return self.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)


Pair = tuple[CountingSocket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a TCP connection: Unix sockets have no mark."""
    with socket.create_server(("127.0.0.1", 0)) as server, CountingSocket() as ours:
        ours.connect(server.getsockname())
        theirs, _ = server.accept()
        with theirs:
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield ours, theirs


@pytest.fixture
def reader() -> FrameReader:
    made = FrameReader("peer")
    made.max_frame = MAX_FRAME
    return made


def receive(reader: FrameReader, sock: socket.socket, deadline: Deadline | None = None) -> bytes:
    return bytes(reader.receive(sock, deadline or after())[0])


def in_pieces(to: socket.socket, sent: bytes) -> threading.Thread:
    """Sends in pieces from another thread, each of which would end a wait without a mark."""

    def send() -> None:
        for at in range(0, len(sent), PIECE):
            to.sendall(sent[at : at + PIECE])
            threading.Event().wait(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@linux_only
@pytest.mark.parametrize("interruptible", [False, True])
def test_a_large_response_that_comes_in_pieces_is_received_in_a_few_calls(
    pair: Pair, reader: FrameReader, monkeypatch: pytest.MonkeyPatch, wakeup: WakeupPipe, interruptible: bool
) -> None:
    monkeypatch.setattr(low_water, "PATIENCE", LONG)
    ours, theirs = pair
    deadline = Deadline.after(LONG, wakeup=wakeup if interruptible else None)
    for _ in range(2):
        ours.calls = 0
        sending = in_pieces(theirs, framed(BODY))
        assert receive(reader, ours, deadline) == BODY
        assert ours.calls <= 1 + 2 * (len(BODY) // low_water.MAX_MARK + 1)
        assert ours.mark == NO_MARK, "the next wait is one for the first byte of a response"
        sending.join()


def test_responses_shorter_than_the_mark_are_received_after_a_large_one(pair: Pair, reader: FrameReader) -> None:
    ours, theirs = pair
    sizes = [3 * 2**20 + 5, 4, MIN_MARK - 1, MIN_MARK, 2**20 + 1, 5]
    sending = threading.Thread(target=theirs.sendall, args=(b"".join(framed(b"v" * size) for size in sizes),))
    sending.start()
    assert [len(receive(reader, ours)) for _ in sizes] == sizes
    sending.join()


@linux_only
def test_a_mark_that_is_not_reached_in_time_delays_no_byte_for_long_and_is_lowered(
    pair: Pair, reader: FrameReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(low_water, "PATIENCE", 0.05)
    ours, theirs = pair
    half = len(BODY) // 2

    def send() -> None:
        theirs.sendall(framed(BODY)[: 4 + half])
        eventually(lambda: ours.received >= 4 + half)  # although the other half has not come
        theirs.sendall(BODY[half:])

    sending = threading.Thread(target=send)
    sending.start()
    assert receive(reader, ours) == BODY
    sending.join()
    assert ours.mark == NO_MARK
    assert reader._low_water._limit < low_water.MAX_MARK


@linux_only
def test_a_connection_whose_marks_are_never_reached_raises_none_any_more(pair: Pair) -> None:
    ours, _ = pair
    mark, raised = LowWaterMark(), 0
    mark.raise_for(ours, 2 * low_water.MAX_MARK)
    while mark.is_raised:
        raised += 1
        assert ours.mark == mark._mark
        mark.halve()
        mark.raise_for(ours, 2 * low_water.MAX_MARK)
    assert (raised, ours.mark) == (3, NO_MARK)


@linux_only
def test_the_mark_never_exceeds_what_is_missing_of_a_response(pair: Pair) -> None:
    ours, _ = pair
    mark = LowWaterMark()
    for missing in (5 * low_water.MAX_MARK, low_water.MAX_MARK - 1, MIN_MARK, MIN_MARK - 1, 1):
        mark.raise_for(ours, missing)
        assert ours.mark <= missing


@pytest.mark.parametrize("ends", ["wakeup", "deadline", "close"])
def test_no_mark_is_left_behind_by_a_wait_that_ends_within_a_response(
    pair: Pair, reader: FrameReader, wakeup: WakeupPipe, ends: str
) -> None:
    ours, theirs = pair
    theirs.sendall(framed(BODY)[:PIECE])
    deadline = Deadline.after(LONG, wakeup=wakeup)
    if ends == "wakeup":
        threading.Timer(0.05, wakeup.set).start()
    elif ends == "deadline":
        deadline = Deadline.after(0.05)
    else:
        theirs.shutdown(socket.SHUT_WR)
    with pytest.raises((Interrupted, TimeoutError, ConnectionResetError)):
        receive(reader, ours, deadline)
    assert ours.mark == NO_MARK


def test_a_response_after_an_interrupted_wait_is_complete(pair: Pair, reader: FrameReader, wakeup: WakeupPipe) -> None:
    ours, theirs = pair
    theirs.sendall(framed(BODY)[: 3 * PIECE])
    threading.Timer(0.05, wakeup.set).start()
    with pytest.raises(Interrupted):
        receive(reader, ours, Deadline.after(LONG, wakeup=wakeup))
    sending = in_pieces(theirs, framed(BODY)[3 * PIECE :])
    assert receive(reader, ours) == BODY
    sending.join()


def test_the_mark_is_raised_neither_with_tls_nor_on_other_systems(
    pair: Pair, reader: FrameReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS waits for records of 16 kB, and the last one may be shorter than any mark."""
    marks: list[int] = []
    monkeypatch.setattr(LowWaterMark, "_set", lambda _self, _sock, mark: marks.append(mark))
    ours, theirs = pair
    for supported, uses_tls in ((True, True), (False, False)):
        monkeypatch.setattr(low_water, "SUPPORTED", supported)
        monkeypatch.setattr("spark_group_source.wire.sockets.uses_tls", lambda _sock, tls=uses_tls: tls)
        monkeypatch.setattr("spark_group_source.wire.sockets.has_decrypted_bytes", lambda _sock: False)
        monkeypatch.setattr("spark_group_source.wire.sockets.not_ready_errors", lambda _sock: (BlockingIOError,))
        sending = in_pieces(theirs, framed(BODY))
        assert receive(reader, ours) == BODY
        sending.join()
        assert set(marks) <= {NO_MARK}

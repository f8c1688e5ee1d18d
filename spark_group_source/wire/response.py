"""An answer of a broker as it came: its header, and the body behind it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from spark_group_source.wire import versions

_CORRELATION_ID = _THROTTLE_TIME = struct.Struct(">i")

_THROTTLED = {each.API_KEY for each in versions.PINNED}
"""Requests whose answers begin with the throttle time in milliseconds. That of ApiVersions stands elsewhere."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response as it came: ``body`` begins behind the response header, and lies in ``buffer``."""

    request: Any
    body: memoryview
    buffer: bytearray

    def decode(self) -> Any:
        """The response as kafka-python's message. Raises anything where the bytes make no sense."""
        return _response_class(self.request).decode(self.body)

    def throttle_time(self) -> float:
        """Seconds for which the broker reads no other request from this connection (KIP-219)."""
        if self.request.API_KEY not in _THROTTLED or len(self.body) < _THROTTLE_TIME.size:
            return 0.0
        (milliseconds,) = _THROTTLE_TIME.unpack_from(self.body)
        return max(0.0, float(milliseconds) / 1000)


def correlation_id(frame: memoryview) -> int:
    """Which request is answered."""
    number: int = _CORRELATION_ID.unpack_from(frame)[0]
    return number


def header_size(request: Any, frame: memoryview) -> int | None:
    """Bytes of the response header: the correlation id, and in flexible versions tagged fields, which are skipped.

    ``None`` where there is no such header.
    """
    answer = _response_class(request)
    # ApiVersions keeps the old header in all versions, so that brokers can answer versions they do not know.
    if request.API_KEY == ApiVersionsRequest.API_KEY or not answer.flexible_version_q(request.API_VERSION):
        return _CORRELATION_ID.size
    try:
        return _after_tags(frame, _CORRELATION_ID.size)
    except (IndexError, ValueError):
        return None


def _after_tags(frame: memoryview, at: int) -> int:
    """Where a set of tagged fields ends. It ends within the frame, so its count needs no limit of its own."""
    count, at = _varint(frame, at)
    for _ in range(count):
        _, at = _varint(frame, at)
        size, at = _varint(frame, at)
        at += size
        if at > len(frame):
            raise ValueError("a tagged field ends behind the frame")
    return at


def _varint(frame: memoryview, at: int) -> tuple[int, int]:
    """An unsigned number of at most five bytes, and where it ends."""
    value = 0
    for shift in range(0, 35, 7):
        byte = frame[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a varint of more than five bytes")


def _response_class(request: Any) -> Any:
    return request.header.get_response_class()

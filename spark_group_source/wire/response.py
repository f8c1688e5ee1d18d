"""A broker's response before decoding: its header and its body."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from spark_group_source.wire import versions

_CORRELATION_ID = _THROTTLE_TIME = struct.Struct(">i")

_THROTTLED = versions.PINNED.keys() | versions.CONSUMER_PROTOCOL.keys()
"""Requests whose responses begin with the throttle time in milliseconds. In ApiVersions it comes later."""


@dataclass(frozen=True, slots=True)
class Response:
    """An undecoded response. ``body`` begins after the response header and points into ``buffer``."""

    request: Any
    body: memoryview
    buffer: bytearray

    def decode(self) -> Any:
        """Decodes to kafka-python's message. Raises any exception if the bytes are malformed."""
        return _response_class(self.request).decode(self.body)

    def throttle_time(self) -> float:
        """Returns how many seconds the broker will not read from this connection (KIP-219)."""
        if self.request.API_KEY not in _THROTTLED or len(self.body) < _THROTTLE_TIME.size:
            return 0.0
        (milliseconds,) = _THROTTLE_TIME.unpack_from(self.body)
        return max(0.0, float(milliseconds) / 1000)


def correlation_id(frame: memoryview) -> int:
    """Returns the correlation id of the request that this response belongs to."""
    number: int = _CORRELATION_ID.unpack_from(frame)[0]
    return number


def header_size(request: Any, frame: memoryview) -> int | None:
    """Returns the size in bytes of the response header, or ``None`` if the header is malformed.

    The header is the correlation id. In flexible versions tagged fields follow, which the source skips.
    """
    flexible = _response_class(request).flexible_version_q(request.API_VERSION)
    # ApiVersions keeps the old header in all versions, so that brokers can respond to versions they do not know.
    if request.API_KEY == ApiVersionsRequest.API_KEY or not flexible:
        return _CORRELATION_ID.size
    try:
        return _after_tags(frame, _CORRELATION_ID.size)
    except (IndexError, ValueError):
        return None


def _after_tags(frame: memoryview, at: int) -> int:
    """Returns where the tagged fields end. The frame bounds them, so their count needs no limit of its own."""
    count, at = _varint(frame, at)
    for _ in range(count):
        _, at = _varint(frame, at)
        size, at = _varint(frame, at)
        at += size
        if at > len(frame):
            raise ValueError("a tagged field ends after the frame")
    return at


def _varint(frame: memoryview, at: int) -> tuple[int, int]:
    """Reads an unsigned number of at most five bytes; returns it and where it ends."""
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

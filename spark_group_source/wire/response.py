"""An undecoded response, and its header."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest

from spark_group_source.errors import UNSUPPORTED_VERSION
from spark_group_source.varints import decode_unsigned
from spark_group_source.wire import versions

_CORRELATION_ID = _THROTTLE_TIME = struct.Struct(">i")
_UNSUPPORTED = UNSUPPORTED_VERSION.to_bytes(2, "big")


@dataclass(frozen=True, slots=True)
class Response:
    """An undecoded response. ``body`` begins after the response header and points into ``buffer``."""

    request: Any
    body: memoryview
    buffer: bytearray

    def decode(self) -> Any:
        """Decodes to kafka-python's message. Raises any exception if the bytes are malformed."""
        response_class = _response_class(self.request)
        if self.request.API_KEY == ApiVersionsRequest.API_KEY and self.body[:2] == _UNSUPPORTED:
            return response_class[0].decode(self.body)  # whatever the request had (KIP-511)
        return response_class.decode(self.body)

    def throttle_time(self) -> float:
        """Returns how many seconds the broker will not read from this connection (KIP-219)."""
        if not versions.answered_before_throttle(self.request) or len(self.body) < _THROTTLE_TIME.size:
            return 0.0
        (milliseconds,) = _THROTTLE_TIME.unpack_from(self.body)
        return max(0.0, float(milliseconds) / 1000)


def correlation_id(frame: memoryview) -> int:
    """Returns the correlation id, which identifies the request that this response answers."""
    number: int = _CORRELATION_ID.unpack_from(frame)[0]
    return number


def header_size(request: Any, frame: memoryview) -> int | None:
    """Returns the size in bytes of the response header, or ``None`` if the header is malformed.

    The header is the correlation id. In flexible versions, tagged fields follow, which the source skips.
    """
    flexible = _response_class(request).flexible_version_q(request.API_VERSION)
    # ApiVersions keeps the old header in all versions, so that brokers can respond to versions they do not know.
    if request.API_KEY == ApiVersionsRequest.API_KEY or not flexible:
        return _CORRELATION_ID.size
    try:
        return after_tags(frame, _CORRELATION_ID.size)
    except (IndexError, ValueError):
        return None


def after_tags(frame: memoryview, at: int) -> int:
    """Returns where the tagged fields end. The frame bounds them, so their count needs no limit of its own."""
    count, at = decode_unsigned(frame, at)
    for _ in range(count):
        _, at = decode_unsigned(frame, at)
        size, at = decode_unsigned(frame, at)
        at += size
        if at > len(frame):
            raise ValueError("a tagged field ends after the frame")
    return at


def _response_class(request: Any) -> Any:
    return request.header.get_response_class()

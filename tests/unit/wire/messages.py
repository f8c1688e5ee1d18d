"""Requests and responses as bytes."""

from __future__ import annotations

import struct
from typing import Any

from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse
from kafka.protocol.metadata import FindCoordinatorRequest


def heartbeat(member: str = "m") -> Any:
    return HeartbeatRequest(version=4, group_id="g", generation_id=1, member_id=member, group_instance_id=None)


def coordinator() -> Any:
    return FindCoordinatorRequest(version=4, key_type=0, coordinator_keys=["g"])


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def encoded(response: Any, correlation_id: int) -> bytes:
    response.with_header(correlation_id=correlation_id)
    return bytes(response.encode(header=True))


def answer(correlation_id: int) -> bytes:
    """The whole response to a heartbeat, with the error code 25."""
    return framed(encoded(HeartbeatResponse(version=4, throttle_time_ms=0, error_code=25), correlation_id))

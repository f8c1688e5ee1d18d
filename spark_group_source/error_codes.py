"""Kafka's numeric error codes that several packages use, and their names in messages."""

from __future__ import annotations

from kafka.errors import for_code

UNKNOWN_SERVER_ERROR = -1
UNKNOWN_TOPIC_OR_PARTITION = 3
UNKNOWN_MEMBER_ID = 25
REBALANCE_IN_PROGRESS = 27
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
UNSUPPORTED_VERSION = 35
GROUP_ID_NOT_FOUND = 69
FENCED_INSTANCE_ID = 82
UNRELEASED_INSTANCE_ID = 111
INVALID_REGULAR_EXPRESSION = 128

_NEWER_THAN_KAFKA_PYTHON = {INVALID_REGULAR_EXPRESSION: "INVALID_REGULAR_EXPRESSION"}


def describe(errno: int) -> str:
    """The code with its Kafka name, for example ``25 (UNKNOWN_MEMBER_ID)``."""
    name = _NEWER_THAN_KAFKA_PYTHON.get(errno) or getattr(for_code(errno), "message", None)
    return f"{errno} ({name or 'unknown to this release'})"

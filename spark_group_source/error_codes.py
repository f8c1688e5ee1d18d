"""Kafka's numeric error codes that several packages use, and their names in messages."""

from __future__ import annotations

from kafka.errors import for_code

UNKNOWN_TOPIC_OR_PARTITION = 3
UNKNOWN_MEMBER_ID = 25
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
FENCED_INSTANCE_ID = 82


def describe(errno: int) -> str:
    """The code with its Kafka name, for example ``25 (UNKNOWN_MEMBER_ID)``."""
    return f"{errno} ({getattr(for_code(errno), 'message', None) or 'unknown to this release'})"

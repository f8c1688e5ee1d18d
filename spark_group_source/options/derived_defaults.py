"""Defaults derived from other options, so that a default never conflicts with an option that the user sets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from spark_group_source.options.table import SourceOptions

_RELATED = (
    ("heartbeat_interval", "session_timeout", 3),
    ("fetch_max_wait", "request_timeout", 2),
    ("fetch_max_wait", "poll_timeout", 2),
    ("retry_backoff", "retry_backoff_max", 1),
    ("reconnect_backoff", "reconnect_backoff_max", 1),
    ("connect_timeout", "connect_timeout_max", 1),
)
"""Two fields in seconds, and the minimum ratio of the second to the first."""

_MAX_SECONDS = (2**31 - 1) / 1000
"""The maximum of a Kafka request's 32-bit milliseconds, in seconds."""


def with_derived_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` plus a value for each field whose default conflicts with ``given``."""
    defaults = {field.name: field.default for field in fields(SourceOptions)}
    values = dict(given)
    for small, large, ratio in _RELATED:
        if small in given and large not in given:
            values[large] = min(max(values.get(large, defaults[large]), given[small] * ratio), _MAX_SECONDS)
        elif large in given and small not in given:
            values[small] = min(values.get(small, defaults[small]), given[large] / ratio)
    return values

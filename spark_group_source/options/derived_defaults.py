"""Defaults that follow the options that were given: no option is refused because of a default. Pure."""

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
"""Two fields in seconds, and how many times the first must fit into the second."""

_LONGEST = (2**31 - 1) / 1000
"""The largest number of milliseconds in a Kafka request, in seconds."""


def with_derived_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with a value for each field whose default does not fit beside those that were given."""
    defaults = {each.name: each.default for each in fields(SourceOptions)}
    values = dict(given)
    for small, large, times in _RELATED:
        if small in given and large not in given:
            values[large] = min(max(values.get(large, defaults[large]), given[small] * times), _LONGEST)
        elif large in given and small not in given:
            values[small] = min(values.get(small, defaults[small]), given[large] / times)
    return values

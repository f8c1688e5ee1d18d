"""Settings and deadlines of connections to a fake Kafka."""

from __future__ import annotations

from typing import Any

from spark_group_source.clock import Deadline
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka

LONG = 90.0


def wire_options(fake: FakeKafka, **more: Any) -> WireOptions:
    """Settings with short backoffs."""
    servers = tuple(("127.0.0.1", each.port) for each in fake.brokers.values())
    return WireOptions(servers, "test", **{"retry_backoff": 0.01, "retry_backoff_max": 0.05, **more})


def after(seconds: float = LONG) -> Deadline:
    return Deadline.after(seconds)

"""The topics that a pattern matches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.clock import Deadline
from spark_group_source.group.settings import Subscription
from spark_group_source.wire.cluster import Metadata, Topic

TOPICS = {
    name: Topic(name, "id", {0: 1}, internal=name.startswith("__"))
    for name in ("orders", "zz-orders-x", "bills", "__orders", "__offsets")
}
CLUSTER: Any = SimpleNamespace(metadata=lambda topics, deadline: Metadata(topics=TOPICS))


@pytest.mark.parametrize(
    ("internal", "found"), [(False, {"orders", "zz-orders-x"}), (True, {"orders", "zz-orders-x", "__orders"})]
)
def test_a_pattern_matches_internal_topics_only_if_they_are_included(internal: bool, found: set[str]) -> None:
    assert Subscription(pattern="orders", internal=internal).find(CLUSTER, Deadline.after(1.0)).keys() == found

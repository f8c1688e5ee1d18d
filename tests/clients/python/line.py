"""What a member of a group tells the tests: the same lines and arguments as in ``go/line/line.go``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

SETTINGS = dict(each.split("=", 1) for each in sys.argv[1:] if "=" in each)
"""servers, group, client, topics or pattern, assignor, protocol, instance, session (in milliseconds)."""

COMMIT_EVERY_S = 0.2


def items(name: str) -> list[str]:
    """The values of an argument that has several; empty if it has none."""
    value = SETTINGS.get(name, "")
    return value.split(",") if value else []


def say(*words: object) -> None:
    """One line."""
    print(*words, flush=True)


def assigned(owned: Iterable[tuple[str, int]]) -> None:
    """All that the member owns now."""
    say("assigned", ",".join(sorted(f"{topic}:{partition}" for topic, partition in owned)))


def read(topic: str, partition: int, offset: int) -> None:
    """A record."""
    say("read", topic, partition, offset, time.time_ns() // 1_000_000)


def committed(topic: str, partition: int, offset: int) -> None:
    """The broker has confirmed a commit."""
    say("committed", topic, partition, offset)

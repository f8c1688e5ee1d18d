"""Parsing of what Kafka's own ``kafka-consumer-groups`` prints."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """One line of ``--describe``: a partition; ``None`` where the tool says ``-``."""

    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None
    client_id: str | None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One line of ``--describe --members``."""

    consumer_id: str
    client_id: str
    partitions: int


def parse_partitions(output: str) -> list[GroupPartition]:
    """The lines of ``--describe``, sorted by topic and partition; empty where the group has none."""
    found = [
        GroupPartition(
            topic=row["TOPIC"],
            partition=int(row["PARTITION"]),
            current_offset=_number(row["CURRENT-OFFSET"]),
            log_end_offset=_number(row["LOG-END-OFFSET"]),
            lag=_number(row["LAG"]),
            consumer_id=_text(row["CONSUMER-ID"]),
            client_id=_text(row["CLIENT-ID"]),
        )
        for row in _table(output)
        # A member without partitions has a line of dashes.
        if row["PARTITION"] != "-"
    ]
    return sorted(found, key=lambda each: (each.topic, each.partition))


def parse_members(output: str) -> list[GroupMember]:
    """The lines of ``--describe --members``, sorted by id; empty where the group has none."""
    found = [GroupMember(row["CONSUMER-ID"], row["CLIENT-ID"], int(row["#PARTITIONS"])) for row in _table(output)]
    return sorted(found, key=lambda each: each.consumer_id)


def _table(output: str) -> list[dict[str, str]]:
    """The lines under the header that starts with GROUP, by column name.

    A cell starts where its column's name does: groups and client ids may hold blanks. Ids and names always fit, as the
    tool makes their columns as wide as they are.
    """
    lines = output.strip().splitlines()
    header = next((number for number, line in enumerate(lines) if line.split()[:1] == ["GROUP"]), len(lines))
    if header == len(lines):
        return []
    starts = [found.start() for found in re.finditer(r"\S+", lines[header])]
    spans = list(zip(starts, [*starts[1:], None], strict=True))
    names = lines[header].split()
    return [
        {name: line[start:end].strip() for name, (start, end) in zip(names, spans, strict=True)}
        for line in lines[header + 1 :]
        if line.strip()
    ]


def _number(word: str) -> int | None:
    return None if word == "-" else int(word)


def _text(word: str) -> str | None:
    return None if word == "-" else word

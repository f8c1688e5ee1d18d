"""Parses the output of Kafka's own ``kafka-consumer-groups``."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """One line of ``--describe``: a partition; ``None`` if the tool prints ``-``."""

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
    """Returns the lines of ``--describe``, sorted by topic and partition; empty if the group has none."""
    partitions = [
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
    return sorted(partitions, key=lambda each: (each.topic, each.partition))


def parse_members(output: str) -> list[GroupMember]:
    """Returns the lines of ``--describe --members``, sorted by id; empty if the group has none."""
    members = [GroupMember(row["CONSUMER-ID"], row["CLIENT-ID"], int(row["#PARTITIONS"])) for row in _table(output)]
    return sorted(members, key=lambda each: each.consumer_id)


def _table(output: str) -> list[dict[str, str]]:
    """Returns the lines under the header that starts with GROUP, by column name.

    A cell starts in the same column as its name in the header, because groups and client ids may contain blanks. The
    tool makes a column as wide as its longest cell.
    """
    lines = output.strip().splitlines()
    header = next((number for number, line in enumerate(lines) if line.split()[:1] == ["GROUP"]), len(lines))
    if header == len(lines):
        return []
    starts = [name.start() for name in re.finditer(r"\S+", lines[header])]
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

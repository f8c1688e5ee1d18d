"""The verdict on one group of several clients: the same for all of them. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.integration.commit_log import Commit
from tests.integration.micro_batches import Place

CLOCK_MS = 5
"""How far a member's stamp on a record may be behind the coordinator's stamp on a commit of it: one clock, rounded."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A record that a member read at a time in milliseconds since 1970. Each start of a client is another member."""

    member: str
    place: Place
    at_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What happened to the records of a group and to its commits.

    Attributes:
        records: how many were written.
        unread: those that no member has read.
        repeated_after_kills: how many times a record was read again that a killed member had read.
        repeated: the records that were read again although no member that had them was killed.
        back: commits that went backwards, with the commit before.
        ahead: commits of records that nobody had read by then.
    """

    records: int
    unread: tuple[Place, ...]
    repeated_after_kills: int
    repeated: tuple[Place, ...]
    back: tuple[tuple[Commit, Commit], ...]
    ahead: tuple[Commit, ...]


def judge(
    written: Collection[Place], readings: Sequence[Reading], killed: Collection[str], commits: Sequence[Commit]
) -> Verdict:
    """The verdict.

    Args:
        written: all records of the topics.
        readings: what the members said, in any order.
        killed: the members that were killed: what such a member read may be read again.
        commits: the coordinator's log.
    """
    readers: dict[Place, list[str]] = defaultdict(list)
    for reading in readings:
        readers[reading.place].append(reading.member)
    repeated, after_kills = [], 0
    for place, members in readers.items():
        if len(members) == 1:
            continue
        if set(members).isdisjoint(killed):
            repeated.append(place)
        else:
            after_kills += len(members) - 1
    return Verdict(
        len(written),
        tuple(sorted(set(written) - readers.keys())),
        after_kills,
        tuple(sorted(repeated)),
        tuple(_back(commits)),
        tuple(_ahead(commits, readings)),
    )


def _back(commits: Iterable[Commit]) -> Iterable[tuple[Commit, Commit]]:
    by_partition: dict[tuple[str, int], list[Commit]] = defaultdict(list)
    for commit in commits:
        by_partition[commit.topic, commit.partition].append(commit)
    for each in by_partition.values():
        for before, after in pairwise(each):
            if after.offset < before.offset:
                yield before, after


def _ahead(commits: Iterable[Commit], readings: Iterable[Reading]) -> Iterable[Commit]:
    first_read: dict[Place, float] = {}
    for reading in readings:
        first_read[reading.place] = min(reading.at_ms, first_read.get(reading.place, math.inf))
    all_read = _all_read(first_read)
    for commit in commits:
        if commit.offset <= 0:
            continue
        read_at = all_read.get((commit.topic, commit.partition, commit.offset - 1), math.inf)
        if commit.at_ms + CLOCK_MS < read_at:
            yield commit


def _all_read(first_read: dict[Place, float]) -> dict[Place, float]:
    """When a record and all before it in its partition had been read."""
    found: dict[Place, float] = {}
    for topic, partition, offset in sorted(first_read):
        before = -math.inf
        if offset > 0:
            before = found.get((topic, partition, offset - 1), math.inf)
        found[topic, partition, offset] = max(first_read[topic, partition, offset], before)
    return found

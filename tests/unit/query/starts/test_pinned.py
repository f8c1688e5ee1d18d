"""Where partitions start that existed when the query first started."""

from __future__ import annotations

from spark_group_source.offsets import BatchOffset, PinnedStart, TopicPartition
from spark_group_source.query.starts.pinned import with_added

FIRST, SECOND, THIRD = (TopicPartition("t", number) for number in range(3))


def test_partitions_of_a_topic_that_was_recreated_since_are_not_pinned() -> None:
    pinned = {FIRST: PinnedStart("former", 5), TopicPartition("u", 0): PinnedStart("u", 1)}
    found = {SECOND: PinnedStart("present", 0), TopicPartition("u", 1): PinnedStart("u", 2)}
    assert with_added(pinned, found) == {**pinned, TopicPartition("u", 1): PinnedStart("u", 2)}


def test_the_starts_of_one_topic_have_one_id_if_brokers_had_none_before() -> None:
    pinned = with_added({FIRST: PinnedStart("", 5)}, {SECOND: PinnedStart("present", 0)})
    assert pinned == {FIRST: PinnedStart("", 5), SECOND: PinnedStart("", 0)}
    offset = BatchOffset(group="g", pinned_starts=pinned)
    assert BatchOffset.from_json(offset.as_json()) == offset


def test_partitions_of_a_new_topic_are_pinned_as_they_were_found() -> None:
    found = {FIRST: PinnedStart("id", 1), THIRD: PinnedStart("id", None, 2, 3, leaderless=True)}
    assert with_added({}, found) == found

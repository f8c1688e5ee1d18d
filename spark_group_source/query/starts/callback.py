"""The option ``startingOffsetsCallback``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_group_source.errors import OptionError
from spark_group_source.offsets import MAX_OFFSET, Offsets, TopicPartition
from spark_group_source.user_code import load

OffsetsByTopic = dict[str, dict[int, int]]


def starting_offsets_callback(path: str | None) -> Callable[[Offsets, Offsets], Offsets]:
    """The function that ``startingOffsetsCallback=module:function`` names, called with offsets by partition.

    The user's function gets two dicts, ``{topic: {partition: offset}}`` of the newly assigned partitions: the ends that
    this query logged last, if it ever read them, and their start positions. The function returns None, or such a dict
    of other start positions. While it runs, the member sends no heartbeats: after a session timeout, the partitions are
    lost.

    Raises:
        OptionError: when called, if the function raises or returns something else.
    """
    if path is None:
        return _leave_all
    function = load(path, "function")

    def call(logged_ends: Offsets, positions: Offsets) -> Offsets:
        try:
            moved = _by_partition(function(_by_topic(logged_ends), _by_topic(positions)))
        except Exception as error:
            raise OptionError(f"The function '{path}' of 'startingOffsetsCallback' failed: {error!r}.") from error
        for tp, offset in moved.items():
            if tp not in positions or not 0 <= offset <= MAX_OFFSET:
                raise OptionError(
                    f"The function '{path}' of 'startingOffsetsCallback' returned offset {offset} for {tp}.",
                    f"Return offsets from 0 to {MAX_OFFSET}, and only for the partitions in its second argument.",
                )
        return moved

    return call


def _by_topic(offsets: Offsets) -> OffsetsByTopic:
    by_topic: OffsetsByTopic = {}
    for tp, offset in sorted(offsets.items()):
        by_topic.setdefault(tp.topic, {})[tp.partition] = offset
    return by_topic


def _by_partition(returned: Any) -> dict[TopicPartition, int]:
    """The offsets that the user's function returned, which may be of any type."""
    moved: dict[TopicPartition, int] = {}
    if not returned:
        return moved
    for topic, offsets in returned.items():
        for number, offset in offsets.items():
            moved[TopicPartition(topic, int(number))] = int(offset)
    return moved


def _leave_all(logged_ends: Offsets, positions: Offsets) -> Offsets:
    return {}

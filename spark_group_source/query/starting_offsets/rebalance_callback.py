"""The user's function that is called when partitions are gained, and may move where they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from spark_group_source.errors import OptionError
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.user_code import load

ByTopic = dict[str, dict[int, int]]


def rebalance_callback(path: str | None) -> Callable[[Mapping[TopicPartition, int | None], Offsets], Offsets]:
    """The function that ``rebalanceCallback=module:function`` names, for offsets by partition.

    The user's function gets two dicts, ``{topic: {partition: offset}}`` of the partitions gained: where this query
    stood last, for those it ever read, and where they are to start. It returns None, or such a dict of other starts.
    It runs on the member's thread, which does not heartbeat meanwhile: one that takes as long as a session loses the
    partitions again.

    Raises:
        OptionError: when called, if the function raises or returns something else.
    """
    if path is None:
        return lambda old, new: {}
    function = load(path, "function")

    def call(old: Mapping[TopicPartition, int | None], new: Offsets) -> Offsets:
        stood = {tp: offset for tp, offset in old.items() if offset is not None}
        try:
            answer = function(_by_topic(stood), _by_topic(new)) or {}
            moved = {
                TopicPartition(topic, int(number)): int(offset)
                for topic, partitions in answer.items()
                for number, offset in partitions.items()
            }
        except Exception as error:
            raise OptionError(f"The function '{path}' of 'rebalanceCallback' failed: {error!r}.") from error
        wrong = [tp for tp, offset in moved.items() if tp not in new or offset < 0]
        if wrong:
            raise OptionError(
                f"The function '{path}' of 'rebalanceCallback' returned offset {moved[wrong[0]]} for {wrong[0]}.",
                "It may return offsets of at least 0 for the partitions in its second argument.",
            )
        return moved

    return call


def _by_topic(offsets: Offsets) -> ByTopic:
    found: ByTopic = {}
    for tp, offset in sorted(offsets.items()):
        found.setdefault(tp.topic, {})[tp.partition] = offset
    return found

"""Choices of where to start and end, turned into offsets. Pure: the leaders are asked through a function."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from spark_group_source.errors import DataLoss, OptionError
from spark_group_source.listing import names, some
from spark_group_source.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    Earliest,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    StartSpec,
    as_json,
)

log = logging.getLogger(__name__)


Ask = Callable[[Offsets], Offsets]
"""The offset of each partition at :data:`EARLIEST`, :data:`LATEST` or a time in milliseconds; -1 where no record is as
late. What no leader tells is left out."""


def check_names(at: StartSpec, existing: Collection[TopicPartition]) -> None:
    """Refuses a choice that names other partitions than those that exist, fewer or more.

    Raises:
        OptionError: it does; with what is missing and what is too much, and the JSON to write.
    """
    named: Mapping[TopicPartition, int | Earliest | Latest]
    guess: int | Earliest | Latest
    if isinstance(at, SpecificOffsets):
        named, guess = at.offsets, Latest() if at.option == "endingOffsets" else Earliest()
    elif isinstance(at, AtTimestamp) and isinstance(at.timestamps, Mapping):
        named, guess = at.timestamps, min(at.timestamps.values())
    else:
        return
    missing, unknown = set(existing) - named.keys(), named.keys() - set(existing)
    if not missing and not unknown:
        return
    wrong = [f"missing: {names(missing)}"] if missing else []
    wrong += [f"too much, as they do not exist or are not subscribed to: {names(unknown)}"] if unknown else []
    raise OptionError(
        f"Option '{at.option}' must name exactly the partitions of the subscription; {'; '.join(wrong)}.",
        f"Write, with the values you mean: {as_json({tp: named.get(tp, guess) for tp in existing})}",
    )


def resolve(
    at: OffsetSpec, partitions: Iterable[TopicPartition], ask: Ask, fail_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """The offset of each partition; one that no leader tells enough of is left out.

    Args:
        partitions: all named by ``at`` where it names any: see :func:`check_names`.

    Raises:
        DataLoss: an offset given is not in the log, and ``fail_on_data_loss`` is set.
        OptionError: no record is as late as a time given, and that is to be an error.
    """
    if isinstance(at, SpecificOffsets):
        given = {tp: at.offsets[tp] for tp in partitions}
        return within_logs(given, ask, fail_on_data_loss, f"Option '{at.option}' says")
    if isinstance(at, AtTimestamp):
        return _at_time(at, partitions, ask)
    return dict(ask(dict.fromkeys(partitions, EARLIEST if isinstance(at, Earliest) else LATEST)))


def within_logs(
    given: Mapping[TopicPartition, int | Earliest | Latest], ask: Ask, fail_on_data_loss: bool, says: str
) -> dict[TopicPartition, int]:
    """Offsets that somebody gave, each of them in its log now.

    Args:
        fail_on_data_loss: where it is false, an offset that is not in the log becomes the nearest that is.
        says: who gave them: begins the sentence about those that are not in the log.

    Raises:
        DataLoss: one is not in the log, and ``fail_on_data_loss`` is set.
    """
    begins, ends = ask(dict.fromkeys(given, EARLIEST)), ask(dict.fromkeys(given, LATEST))
    found, outside = {}, []
    for tp, place in sorted(given.items(), key=lambda each: each[0]):
        if tp not in begins or tp not in ends:
            continue
        begin, end = begins[tp], ends[tp]
        wanted = begin if isinstance(place, Earliest) else end if isinstance(place, Latest) else place
        found[tp] = min(max(wanted, begin), end)
        if wanted != found[tp]:
            outside.append(f"{wanted} for {tp}, whose log holds [{begin}, {end})")
    if outside:
        what = f"{says} offset {some(outside, '; ')}."
        if fail_on_data_loss:
            raise DataLoss(
                what,
                "Its records were deleted by retention, or are still to come. Give offsets in the log, or set"
                " failOnDataLoss to false to take the nearest.",
            )
        log.warning("%s The nearest is taken, as failOnDataLoss is false.", what)
    return found


def _at_time(at: AtTimestamp, partitions: Iterable[TopicPartition], ask: Ask) -> dict[TopicPartition, int]:
    times = {tp: at.timestamps if isinstance(at.timestamps, int) else at.timestamps[tp] for tp in partitions}
    # The ends first: a record that comes between the two lookups lies behind the end, and is not passed over.
    ends = ask(dict.fromkeys(times, LATEST)) if at.or_latest else {}
    found = ask(times)
    late = sorted(tp for tp, offset in found.items() if offset < 0)
    if late and not at.or_latest:
        raise OptionError(
            f"No record of {names(late)} is as late as option '{at.option}' says ({times[late[0]]}).",
            "Give an earlier time, or set 'startingOffsetsByTimestampStrategy' to latest to start there at the end.",
        )
    told = {tp: offset if offset >= 0 else ends.get(tp, -1) for tp, offset in found.items()}
    return {tp: offset for tp, offset in told.items() if offset >= 0}

"""Turns the parsed options about where a read starts and ends into offsets. Pure: the caller passes the function that
looks up offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from spark_group_source.errors import OptionError, raise_or_warn
from spark_group_source.offsets import EARLIEST, LATEST, Offsets, TopicPartition, topics_of
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    Earliest,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    StartSpec,
    as_json,
)
from spark_group_source.text import names, some

log = logging.getLogger(__name__)

LookUp = Callable[[Offsets], Offsets]
"""Returns the offset of each partition at :data:`EARLIEST`, :data:`LATEST` or a time in milliseconds; -1 if no record
has that time or a later one. Partitions whose leader does not answer are left out."""


def _named(spec: StartSpec) -> Mapping[TopicPartition, int | Earliest | Latest]:
    """The value of ``spec`` for each partition that it names."""
    if isinstance(spec, SpecificOffsets):
        return spec.offsets
    if isinstance(spec, AtTimestamp) and isinstance(spec.timestamps, Mapping):
        return spec.timestamps
    return {}


def check_names(spec: StartSpec, existing: Collection[TopicPartition]) -> None:
    """Rejects a spec that names a partition that does not exist, or has no value for one that exists.

    Raises:
        OptionError: with the missing and the unknown partitions, and the JSON to write.
    """
    unknown = {str(tp) for tp in _named(spec).keys() - set(existing)}
    if isinstance(spec, SpecificOffsets):
        unknown |= spec.topics.keys() - topics_of(existing)
    _check(spec, existing, unknown)


def _check(spec: StartSpec, existing: Collection[TopicPartition], unknown: Collection[str]) -> None:
    """Raises the error of :func:`check_names` if there are ``unknown`` names, or if an existing partition has no
    value."""
    missing = _missing(spec, existing)
    if not missing and not unknown:
        return
    wrong = []
    if missing:
        wrong.append(f"missing: {names(missing)}")
    if unknown:
        wrong.append(f"not in the subscription: {names(unknown)}")
    assert isinstance(spec, (SpecificOffsets, AtTimestamp))
    raise OptionError(
        f"Option '{spec.option}' must name exactly the partitions of the subscription; {'; '.join(wrong)}.",
        f"Write, with your own values: {_complete_json(spec, existing, unknown)}",
    )


def _missing(spec: StartSpec, existing: Collection[TopicPartition]) -> set[TopicPartition]:
    """The partitions that exist and for which a spec that must name all has no offset or time."""
    if isinstance(spec, SpecificOffsets):
        return {tp for tp in existing if spec.of(tp) is None}
    if isinstance(spec, AtTimestamp) and isinstance(spec.timestamps, Mapping):
        return set(existing) - spec.timestamps.keys()
    return set()


def _complete_json(
    spec: SpecificOffsets | AtTimestamp, existing: Collection[TopicPartition], unknown: Collection[str]
) -> str:
    """The JSON with the values of a spec for existing partitions, and with the usual value for partitions that it
    leaves out."""
    named = _named(spec)
    if isinstance(spec, AtTimestamp):
        earliest_time = min(named.values(), key=_time)
        return as_json({tp: named.get(tp, earliest_time) for tp in existing})
    topics = {topic: offset for topic, offset in spec.topics.items() if topic not in unknown}
    offsets = {}
    for tp in existing:
        if tp.topic not in topics:
            offsets[tp] = named.get(tp, _usual_offset(spec))
    return as_json(offsets, spec.others, topics)


def _usual_offset(spec: SpecificOffsets) -> Earliest | Latest:
    """The value of a spec for partitions that it does not name, or the usual value of its option."""
    if spec.others is not None:
        return spec.others
    if spec.option == "endingOffsets":
        return Latest()
    return Earliest()


def _time(value: int | Earliest | Latest) -> int:
    if isinstance(value, int):
        return value
    return 0


def resolve_spec(
    spec: OffsetSpec, partitions: Iterable[TopicPartition], look_up: LookUp, fail_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """The offset of each partition. Leaves out partitions whose leader does not answer.

    Args:
        spec: may name other partitions as well.

    Raises:
        DataLoss: a specific offset is not in the log, and ``fail_on_data_loss`` is set.
        OptionError: no record has the time or a later one, and the options make that an error. Or ``spec`` does not
            name all of these partitions, because the option changed before all partitions had started.
    """
    _check(spec, {*partitions, *_named(spec)}, unknown=())
    if isinstance(spec, SpecificOffsets):
        offsets = _offsets_of(spec, partitions)
        return raise_or_clamp(offsets, look_up, fail_on_data_loss, f"Option '{spec.option}' has")
    if isinstance(spec, AtTimestamp):
        return _at_timestamp(spec, partitions, look_up)
    if isinstance(spec, Earliest):
        return dict(look_up(dict.fromkeys(partitions, EARLIEST)))
    return dict(look_up(dict.fromkeys(partitions, LATEST)))


def _offsets_of(
    spec: SpecificOffsets, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | Earliest | Latest]:
    """The values of a spec for these partitions. Leaves out partitions for which it has none."""
    offsets = {}
    for tp in partitions:
        offset = spec.of(tp)
        if offset is not None:
            offsets[tp] = offset
    return offsets


def raise_or_clamp(
    offsets: Mapping[TopicPartition, int | Earliest | Latest], look_up: LookUp, fail_on_data_loss: bool, prefix: str
) -> dict[TopicPartition, int]:
    """Specific offsets, checked to be in the logs.

    Args:
        fail_on_data_loss: if it is false, the nearest offset in the log replaces one outside.
        prefix: the start of the sentence about an offset outside the log, which names its origin.

    Raises:
        DataLoss: an offset is not in its log, and ``fail_on_data_loss`` is set.
    """
    earliest, latest = look_up(dict.fromkeys(offsets, EARLIEST)), look_up(dict.fromkeys(offsets, LATEST))
    clamped, outside = {}, []
    for tp in sorted(offsets.keys() & earliest.keys() & latest.keys()):
        start, end = earliest[tp], latest[tp]
        offset = _offset_in(start, end, offsets[tp])
        clamped[tp] = min(max(offset, start), end)
        if offset != clamped[tp]:
            outside.append(f"{offset} for {tp}, whose log holds [{start}, {end})")
    if outside:
        raise_or_warn(
            log,
            fail_on_data_loss,
            f"{prefix} offset {some(outside, '; ')}",
            "Retention has deleted its records, or nothing is written there yet. Give offsets in the log, or set"
            " failOnDataLoss to false to use the nearest.",
            "The nearest offset is used",
        )
    return clamped


def _offset_in(start: int, end: int, spec: int | Earliest | Latest) -> int:
    """The offset that a spec means in a log that holds ``[start, end)``."""
    if isinstance(spec, Earliest):
        return start
    if isinstance(spec, Latest):
        return end
    return spec


def _at_timestamp(
    spec: AtTimestamp, partitions: Iterable[TopicPartition], look_up: LookUp
) -> dict[TopicPartition, int]:
    times = _times_of(spec, partitions)
    ends: Offsets = {}
    if spec.or_latest:
        # The ends are looked up first, so that a record written between the two lookups lies after the end, and is read
        # later.
        ends = look_up(dict.fromkeys(times, LATEST))
    found, too_late = {}, []
    for tp, offset in look_up(times).items():
        if offset >= 0:
            found[tp] = offset
        elif ends.get(tp, -1) >= 0:  # without an end, a later lookup has to find the start
            found[tp] = ends[tp]
        else:
            too_late.append(tp)
    if too_late and not spec.or_latest:
        too_late.sort()
        raise OptionError(
            f"{names(too_late)} has no record at or after the time in option '{spec.option}' ({times[too_late[0]]}).",
            "Give an earlier time, or set 'startingOffsetsByTimestampStrategy' to latest to start at the end.",
        )
    return found


def _times_of(spec: AtTimestamp, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    if isinstance(spec.timestamps, int):
        return dict.fromkeys(partitions, spec.timestamps)
    return {tp: spec.timestamps[tp] for tp in partitions}

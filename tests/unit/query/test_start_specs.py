"""Specs of starts and ends become offsets: the lookups they need, and the errors for specs that do not fit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from spark_group_source.errors import OptionError
from spark_group_source.offsets import EARLIEST, LATEST, TopicPartition
from spark_group_source.options.offset_specs import (
    AtTimestamp,
    Earliest,
    Latest,
    OffsetSpec,
    SpecificOffsets,
    StartSpec,
)
from spark_group_source.query.start_specs import check_names, resolve_spec

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Leaders:
    """Logs whose offset n has the time 100 * n. A partition that is removed here has no leader."""

    def __init__(self) -> None:
        self.logs = {A: (10, 20), B: (0, 5)}

    def __call__(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: self._at(*self.logs[tp], at) for tp, at in wanted.items() if tp in self.logs}

    def _at(self, begin: int, end: int, at: int) -> int:
        if at in (EARLIEST, LATEST):
            return begin if at == EARLIEST else end
        offset = max(begin, -(-at // 100))
        return offset if offset < end else -1


@pytest.mark.parametrize(
    ("at", "offsets"),
    [
        (Earliest(), {A: 10, B: 0}),
        (Latest(), {A: 20, B: 5}),
        (SpecificOffsets({A: 13, B: Latest()}, "x"), {A: 13, B: 5}),
        (SpecificOffsets({A: Earliest(), B: 2}, "x"), {A: 10, B: 2}),
        (SpecificOffsets({A: 13}, "x", Earliest()), {A: 13, B: 0}),
        (SpecificOffsets({A: 13}, "x", Latest()), {A: 13, B: 5}),
        (SpecificOffsets({}, "x", None, {"t": Latest(), "absent": Earliest()}), {A: 20, B: 5}),
        (AtTimestamp({A: 1200, B: 0}, "x", or_latest=False), {A: 12, B: 0}),
        (AtTimestamp(1200, "x", or_latest=True), {A: 12, B: 5}),
        (AtTimestamp(9999, "x", or_latest=True), {A: 20, B: 5}),
    ],
)
def test_specs_become_offsets(at: OffsetSpec, offsets: dict[TopicPartition, int]) -> None:
    assert resolve_spec(at, [A, B], Leaders(), fail_on_data_loss=True) == offsets


@pytest.mark.parametrize("at", [Earliest(), SpecificOffsets({A: 13, B: 2}, "x"), AtTimestamp(350, "x", True)])
def test_partitions_without_a_leader_are_left_out(at: OffsetSpec) -> None:
    leaders = Leaders()
    del leaders.logs[A]
    assert resolve_spec(at, [A, B], leaders, fail_on_data_loss=True).keys() == {B}


def test_a_record_written_between_the_two_lookups_is_not_skipped() -> None:
    leaders = Leaders()

    def ask(wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        found = leaders(wanted)
        leaders.logs[B] = (0, leaders.logs[B][1] + 1)
        return found

    # The record at offset 5 has time 500, too early. The record at offset 6 fits, and comes after the lookup.
    assert resolve_spec(AtTimestamp(600, "x", or_latest=True), [B], ask, fail_on_data_loss=True) == {B: 5}


NO_TOPIC = ["not in the subscription: u-0."]


@pytest.mark.parametrize(
    ("at", "says", "write"),
    [
        (SpecificOffsets({A: 7}, "startingOffsets"), ["missing: t-1."], '{"t":{"0":7,"1":-2}}'),
        (SpecificOffsets({A: 7, B: Latest(), C: 1}, "startingOffsets"), NO_TOPIC, '{"t":{"0":7,"1":-1}}'),
        (SpecificOffsets({A: 7, C: 1}, "startingOffsets", Earliest()), NO_TOPIC, '{"t":{"0":7,"1":-2},"*":-2}'),
        (
            SpecificOffsets({}, "startingOffsets", None, {"t": Latest(), "v": Latest()}),
            ["not in the subscription: v."],
            '{"t":"latest"}',
        ),
        (SpecificOffsets({C: 4}, "startingOffsets", Latest(), {"t": Earliest()}), NO_TOPIC, '{"t":"earliest","*":-1}'),
        (AtTimestamp({B: 8, C: 3}, "endingOffsetsByTimestamp", True), ["missing: t-0;", "u-0."], '{"t":{"0":3,"1":8}}'),
    ],
)
def test_a_spec_by_partition_must_name_exactly_the_existing_ones(at: StartSpec, says: list[str], write: str) -> None:
    check_names(SpecificOffsets({A: 1, B: 2}, "x"), {A, B})
    check_names(SpecificOffsets({A: 1}, "x", Earliest()), {A, B})
    check_names(SpecificOffsets({}, "x", None, {"t": Earliest()}), {A, B})
    with pytest.raises(OptionError) as refused:
        check_names(at, {A, B})
    for each in (*says, write, "must name exactly"):
        assert each in str(refused.value)


def test_a_partition_whose_end_is_unknown_is_looked_up_again() -> None:
    """Neither a record with the time nor the end of the log: -1 is no position."""
    leaders = Leaders()

    def without_end_of_a(wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: -1 if tp == A and wanted[tp] == LATEST else offset for tp, offset in leaders(wanted).items()}

    spec = AtTimestamp(9999, "x", or_latest=True)
    assert resolve_spec(spec, [A, B], without_end_of_a, fail_on_data_loss=True) == {B: 5}

"""How many offsets a batch may read so that it takes about ``targetBatchDuration``. Pure: the result depends only on
the durations and sizes of completed batches.

The controller is the fixed-point iteration of Das, Zhong, Stoica and Shenker, "Adaptive Stream Processing using Dynamic
Batch Sizing" (SoCC 2014), turned around: they look for the interval that a batch needs, here the duration is given, and
the size is sought. A batch of ``n`` offsets that took ``t`` seconds, ``f`` of them fixed, is followed by one of
``n * (target - f) / (t - f)`` offsets. Whatever ``f`` is, the size stops changing only when a batch takes the target:
an error in ``f`` delays that, but does not change the result. The other rules decide how far to trust one batch:

- **Careful at first.** The first batch assumes a slow sink. Growth is at most tenfold, as only a batch of similar size
  shows what records cost, and at most so far that the next batch takes 1.5 times the target if no cost is fixed.
- **Quick to retreat, calm at rest.** A batch that took twice the target, or half of it, is corrected in full, one near
  the target only in part. A single slow batch, for example with a repeated task, therefore makes only one batch small.
- **Fixed costs.** The line through two batches whose sizes differ by a factor of two shows what a batch costs without
  records. DStreams' PIDRateEstimator (SPARK-8979) knows no such costs, and shrinks batches that cannot get shorter.
  Here a third of the duration of a batch is left for records, even if fixed costs alone exceed the target. Where fixed
  costs seem to be a large part of a batch, sizes hardly change, so nothing would show an error in them. A probe, a
  batch that is made small, is then compared with the batch before it, at first often, later every tenth batch. A larger
  batch might take too long.
- **A batch without records teaches nothing** (SPARK-9966), and no size is 0. A batch that read less than it might have,
  because another limit was lower or there were no more records, lowers the limit only if its records took long.

Sizes are offsets, not bytes. The driver knows offsets exactly and sees no record, and most sinks cost time per row.
When records become larger, or offsets denser (compaction, aborted transactions), batches take longer, which is what the
controller measures. ``maxBytesPerTrigger``, if it is also set, bounds the first such batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

FIRST_OFFSETS_PER_SECOND = 100.0
"""Offsets of the first batch for each second of the target: right for a sink that takes 10 ms for a record."""

MAX_FIRST_OFFSETS = 1000
"""Maximum number of offsets of the first batch."""

MAX_GROWTH = 10.0
"""Maximum factor by which the next batch is larger than the last one."""

MAX_OVERSHOOT = 1.5
"""Maximum duration of the next batch, as a multiple of the target, if no cost of the last batch was fixed."""

GAIN_AT_REST = 0.3
"""The fraction of a correction, on a logarithmic scale, that is applied after a batch near the target."""

GAIN_OF_GROWTH = 0.85
"""Maximum fraction of a correction upwards that is applied, so that sizes settle even if costs grow with the square of
the size."""

MIN_SHRINKAGE = 0.05
"""Minimum size of the next batch, as a fraction of the last one, however long the last one took."""

MIN_RATIO = 2.0
"""Minimum factor by which two batches must differ in size to show fixed costs."""

GAIN_OF_FIXED = 0.3
"""The fraction of a newly measured fixed cost that is applied, because one pair of batches may be far from the line."""

MAX_PART_FIXED = 0.75
"""Fixed costs count up to the duration of the last batch divided by this number. A higher value is outdated."""

RECORDS_SHARE = 1 / 3
"""Minimum fraction of the duration of a batch that is left for its records."""

REFERENCE_BATCHES = 10
"""Number of batches after which a newer batch becomes the reference. Also the maximum number of batches between two
probes."""

PROBE_DIVISOR = 3
"""A probe, which shows fixed costs, reads the offsets of the batch before it divided by this number."""

PROBED_PART = 0.45
"""Fixed costs above this fraction of the aimed duration lead to a probe."""

GAIN_OF_PROBE = 0.7
"""The fraction of a fixed cost that is applied if a probe has measured it. It is high because the two batches of a
probe ran one directly after the other."""

MAX_PROBE_SECONDS = 1.5
"""Maximum duration of a probe, as a multiple of the duration of the larger batch before it. A longer probe shows a
slower sink, and no fixed costs."""

FULL_PART = 0.8
"""A batch that read at least this fraction of a limit counts as limited, because the portions of partitions are rounded
down."""

PORTION_SLACK = 2.0
"""Maximum factor by which the largest portion of one partition may exceed its share of the last batch. One task reads
each portion, so with fewer partitions, fewer tasks run at once."""

GROWTH_UNKNOWN, GROWTH_BEFORE_FIRST = 1.1, 2.0
"""Factors by which the limit grows after a batch whose duration is unknown, and before the first known one, like the
additive increase and the slow start of RFC 5681."""


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """A batch with records that Spark has completed.

    Attributes:
        offsets: the number of offsets that it read.
        largest: the number of offsets of the partition with the most offsets.
        seconds: its duration, from its plan to its completion.
    """

    offsets: int
    largest: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """The costs that the batches have shown so far, and how much the next batch may read.

    Attributes:
        offsets: maximum number of offsets of the next batch, at least 1.
        largest: maximum number of offsets of one partition in it.
        fixed: seconds that a batch takes without records, as far as known.
        last: the last batch that was measured.
        reference: an earlier batch, with which the next ones are compared.
        age: how many batches were measured after the reference.
        probe_after: how old the reference may become before a probe.
        probed: the batch before the probe, if the next batch is a probe.
    """

    offsets: int
    largest: float = math.inf
    fixed: float = 0.0
    last: MeasuredBatch | None = None
    reference: MeasuredBatch | None = None
    age: int = 0
    probe_after: int = 1
    probed: MeasuredBatch | None = None


def first_pace(target: float) -> Pace:
    """The pace of a query that begins. ``target`` is the duration of a batch in seconds, here and below."""
    offsets = min(int(target * FIRST_OFFSETS_PER_SECOND), MAX_FIRST_OFFSETS)
    return Pace(max(1, offsets))


def aimed_seconds(target: float, fixed: float) -> float:
    """The duration that is aimed at: the target, or a longer one if fixed costs leave no time for records."""
    return max(target, fixed / (1 - RECORDS_SHARE))


def next_pace(pace: Pace, target: float, batch: MeasuredBatch) -> Pace:
    """The pace after a batch. A batch without offsets teaches nothing."""
    if batch.offsets <= 0:
        return pace
    probed, pace = pace.probed, replace(pace, probed=None)
    if probed is not None and batch.seconds <= MAX_PROBE_SECONDS * probed.seconds:
        return _after_probe(replace(pace, last=batch), target, probed, batch)
    known = replace(_with_fixed_costs(pace, target, batch), last=batch)
    aim = aimed_seconds(target, known.fixed)
    offsets = _corrected(batch, aim, known.fixed)
    if not _is_limited(pace, batch):
        return _after_small_batch(known, target, batch, offsets, aim)
    is_like_last = batch.offsets / MIN_RATIO < offsets < batch.offsets * MIN_RATIO  # and so shows no fixed costs
    if is_like_last and known.fixed > PROBED_PART * aim and known.age >= known.probe_after:
        return _probing(known, batch)
    return _limited_to(known, batch, offsets)


def _probing(pace: Pace, batch: MeasuredBatch) -> Pace:
    """The pace whose next batch is much smaller than this one, to show fixed costs."""
    probe_after = min(2 * pace.probe_after, REFERENCE_BATCHES - 1)
    probing = _limited_to(pace, batch, max(1, batch.offsets // PROBE_DIVISOR))
    return replace(probing, probe_after=probe_after, probed=batch)


def _after_probe(pace: Pace, target: float, probed: MeasuredBatch, batch: MeasuredBatch) -> Pace:
    """The pace after a probe. The next size follows from the batch before it."""
    if probed.offsets < MIN_RATIO * batch.offsets:
        return _limited_to(pace, probed, probed.offsets)
    fixed = pace.fixed + GAIN_OF_PROBE * (fixed_costs(probed, batch) - pace.fixed)
    fixed = min(fixed, batch.seconds / MAX_PART_FIXED)
    offsets = _corrected(probed, aimed_seconds(target, fixed), fixed)
    return _limited_to(replace(pace, fixed=fixed, reference=probed, age=0), probed, offsets)


def pace_after_wait(pace: Pace, batch: MeasuredBatch) -> Pace:
    """The pace after a batch that was shorter than measured, since Spark may have waited for a trigger.

    The batch shows no cost. The limit grows nevertheless, until a batch outlasts the interval and so can be measured.
    """
    if not _is_limited(pace, batch):
        return pace
    growth = GROWTH_UNKNOWN
    if pace.last is None:
        growth = GROWTH_BEFORE_FIRST
    return replace(pace, offsets=max(pace.offsets + 1, round(pace.offsets * growth)), largest=pace.largest * growth)


def _is_limited(pace: Pace, batch: MeasuredBatch) -> bool:
    """Whether this limit decided how much the batch read, and not another limit or a lack of records."""
    return batch.offsets >= FULL_PART * pace.offsets or batch.largest >= FULL_PART * pace.largest


def _limited_to(pace: Pace, batch: MeasuredBatch, offsets: int) -> Pace:
    """The pace with a number of offsets, and of offsets of one partition, that follow from those of a batch."""
    return replace(pace, offsets=offsets, largest=PORTION_SLACK * batch.largest * offsets / batch.offsets)


def _after_small_batch(pace: Pace, target: float, batch: MeasuredBatch, offsets: int, aim: float) -> Pace:
    """The pace after a batch that read less than it might have. ``offsets`` is the size that follows from it."""
    is_long = batch.seconds - pace.fixed >= (aim - pace.fixed) / 2
    if is_long:
        # However long a few records took, the next batch need not be more careful than the first one.
        least = min(pace.offsets, first_pace(target).offsets)
        return _limited_to(pace, batch, max(offsets, least))
    if offsets > pace.offsets:
        return _limited_to(pace, batch, offsets)
    return pace


def _corrected(batch: MeasuredBatch, aim: float, fixed: float) -> int:
    """The size of the next batch, from the duration of this one."""
    gain = max(GAIN_AT_REST, min(1.0, abs(math.log2(batch.seconds / aim))))
    is_fixed_alone = batch.seconds - fixed < batch.seconds / 1000
    if is_fixed_alone or batch.seconds < aim:
        return _grown(batch, aim, fixed, gain)
    ratio = (aim - fixed) / (batch.seconds - fixed)
    shrinkage = max(math.pow(ratio, gain), MIN_SHRINKAGE)
    return max(1, round(batch.offsets * shrinkage))


def _grown(batch: MeasuredBatch, aim: float, fixed: float, gain: float) -> int:
    """The size after a batch that was too short, or had no measurable costs of records."""
    ratio = (aim - fixed) / max(batch.seconds - fixed, batch.seconds / 1000)
    growth = math.pow(ratio, min(gain, GAIN_OF_GROWTH))
    growth = min(growth, MAX_GROWTH, MAX_OVERSHOOT * aim / batch.seconds)
    return max(batch.offsets + 1, round(batch.offsets * growth))


def _with_fixed_costs(pace: Pace, target: float, batch: MeasuredBatch) -> Pace:
    """The pace with the fixed costs that are known now."""
    if pace.reference is None:
        # The first batch is small, so most of its time is fixed, unless the sink is slow: at most half of the target.
        return replace(pace, fixed=min(batch.seconds, target / 2), reference=batch, age=0)
    fixed, reference, age = pace.fixed, pace.reference, pace.age + 1
    larger, smaller = max(batch.offsets, reference.offsets), min(batch.offsets, reference.offsets)
    if larger >= MIN_RATIO * smaller:
        fixed += GAIN_OF_FIXED * (fixed_costs(reference, batch) - fixed)
        reference, age = batch, 0
    elif age >= REFERENCE_BATCHES:
        reference, age = batch, 0
    if _is_smallest(pace, batch) and batch.seconds > aimed_seconds(target, fixed):
        # There is no smaller size to compare with, and the time that one offset of each partition takes cannot be
        # avoided either.
        fixed += GAIN_OF_FIXED * (batch.seconds - fixed)
    return replace(pace, fixed=min(fixed, batch.seconds / MAX_PART_FIXED), reference=reference, age=age)


def _is_smallest(pace: Pace, batch: MeasuredBatch) -> bool:
    """Whether the batch could not be much smaller: each partition gets one offset at least."""
    return batch.largest == 1 or batch.offsets >= MIN_RATIO * pace.offsets


def fixed_costs(one: MeasuredBatch, other: MeasuredBatch) -> float:
    """The duration of a batch without records, in seconds, that two batches of different sizes show.

    No cost is negative: if the larger batch was not the longer one, the mean duration of both counts as fixed.
    """
    per_offset = (other.seconds - one.seconds) / (other.offsets - one.offsets)
    if per_offset <= 0:
        return (one.seconds + other.seconds) / 2
    return max(0.0, one.seconds - per_offset * one.offsets)

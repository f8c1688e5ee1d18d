"""How much of a backlog is done."""

from __future__ import annotations

import json
from typing import Any

from spark_group_source.lag.backlog import Backlog
from tests.unit.lag.events import ends, offset, progress, source


def after(*batches: tuple[dict[str, Any] | str, dict[str, Any] | str | None]) -> tuple[int, int | None]:
    """Done and total after these batches, each an offset and the end offsets."""
    backlog = Backlog()
    for end, latest in batches:
        backlog.update(progress(source(end, latest)))
    return backlog.done, backlog.total


def test_the_total_is_the_records_that_existed_when_the_first_batch_was_planned() -> None:
    assert after() == (0, None)
    end, latest = offset(t_0=(10, 15), t_1=(0, 5)), ends(t_0=30, t_1=5)
    assert after((end, latest)) == (10, 25)
    # Spark Connect has texts.
    assert after((json.dumps(end), json.dumps(latest)), ("no JSON", "[]")) == (10, 25)


def test_later_records_are_not_part_of_the_backlog_unless_the_first_batch_reads_them() -> None:
    first, last = (offset(t_0=(0, 10)), ends(t_0=100)), (offset(t_0=(90, 150)), ends(t_0=900))
    assert after(first, last) == (100, 100)
    assert after((offset(t_0=(0, 12)), ends(t_0=10))) == (12, 12)
    assert after((offset(t_0=(0, 10)), None)) == (10, 10), "without end offsets it is the batches so far"


def test_revoked_partitions_leave_the_backlog_and_assigned_partitions_join_it() -> None:
    first = (offset(t_0=(0, 10), t_1=(0, 10)), ends(t_0=100, t_1=100))
    revoked = (offset(t_0=(10, 20), t_1=(10, 10)), ends(t_0=100))
    assert after(first, revoked) == (30, 110)
    assigned = (offset(t_0=(20, 100), t_1=(10, 10), u_0=(5, 6)), ends(t_0=100, u_0=8))
    assert after(first, revoked, assigned) == (111, 113)


def test_a_rewind_reduces_the_done_part() -> None:
    assert after((offset(t_0=(50, 60)), ends(t_0=90)), (offset(t_0=(40, 55)), ends(t_0=90))) == (5, 40)
    assert after((offset(t_0=(50, 60)), ends(t_0=90)), (offset(t_0=(0, 5)), ends(t_0=90))) == (0, 40)


def test_each_source_of_this_package_counts_and_other_sources_do_not() -> None:
    backlog = Backlog()
    first, second = source(offset(t_0=(0, 1)), ends(t_0=4)), source(offset(t_0=(0, 2)), ends(t_0=4))
    backlog.update(progress(source("7", "9"), first, second))
    assert (backlog.done, backlog.total) == (3, 8)

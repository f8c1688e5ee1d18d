"""How much of a backlog is done."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from spark_group_source.lag.backlog import Backlog
from tests.unit.lag.events import ends, offset, progress, source

RUN = uuid.UUID(int=1)


def after(*batches: tuple[dict[str, Any] | str, dict[str, Any] | str | None]) -> tuple[int, int | None]:
    """Done and total after these batches, each an offset and the ends of the logs."""
    backlog = Backlog()
    for end, latest in batches:
        backlog.update(progress(source(end, latest), run=RUN))
    return backlog.done, backlog.total


def test_nothing_is_known_before_the_first_batch() -> None:
    assert after() == (0, None)


def test_the_total_is_what_the_logs_held_when_the_first_batch_was_planned() -> None:
    assert after((offset(t_0=(10, 15), t_1=(0, 5)), ends(t_0=30, t_1=5))) == (10, 25)


def test_spark_connects_offsets_are_text_that_holds_them() -> None:
    end, latest = offset(t_0=(10, 15), t_1=(0, 5)), ends(t_0=30, t_1=5)
    assert after((json.dumps(end), json.dumps(latest)), ("no JSON", "[]")) == (10, 25)


def test_batches_in_between_may_be_missed() -> None:
    logs = ends(t_0=100)
    assert after((offset(t_0=(0, 10)), logs), (offset(t_0=(60, 70)), logs)) == (70, 100)


def test_a_log_that_grows_is_done_when_what_was_there_is() -> None:
    first, last = (offset(t_0=(0, 10)), ends(t_0=100)), (offset(t_0=(90, 150)), ends(t_0=900))
    assert after(first, last) == (100, 100)


def test_a_batch_that_reads_beyond_the_ends_it_was_told_is_whole() -> None:
    assert after((offset(t_0=(0, 12)), ends(t_0=10))) == (12, 12)


def test_what_is_taken_away_is_not_waited_for_and_what_is_given_is() -> None:
    first = (offset(t_0=(0, 10), t_1=(0, 10)), ends(t_0=100, t_1=100))
    taken = (offset(t_0=(10, 20), t_1=(10, 10)), ends(t_0=100))
    assert after(first, taken) == (30, 110)
    given = (offset(t_0=(20, 100), t_1=(10, 10), u_0=(5, 6)), ends(t_0=100, u_0=8))
    assert after(first, taken, given) == (111, 113)


def test_a_rewind_is_undone_work() -> None:
    assert after((offset(t_0=(50, 60)), ends(t_0=90)), (offset(t_0=(40, 55)), ends(t_0=90))) == (5, 40)
    assert after((offset(t_0=(50, 60)), ends(t_0=90)), (offset(t_0=(0, 5)), ends(t_0=90))) == (0, 40)


def test_without_the_ends_of_the_logs_each_batch_is_all_there_is() -> None:
    assert after((offset(t_0=(0, 10)), None)) == (10, 10)


def test_sources_are_counted_apart_and_those_of_others_not_at_all() -> None:
    backlog = Backlog()
    told = [source("7", "9"), source(offset(t_0=(0, 1)), ends(t_0=4)), source(offset(t_0=(0, 2)), ends(t_0=4))]
    backlog.update(progress(*told, run=RUN))
    assert (backlog.done, backlog.total) == (3, 8)


@pytest.mark.parametrize("end", [None, "5", {"t": {"0": 5}}])
def test_a_query_without_a_source_of_ours_has_no_backlog(end: object) -> None:
    backlog = Backlog()
    backlog.update(progress(source(end), run=RUN))
    assert (backlog.done, backlog.total) == (0, None)

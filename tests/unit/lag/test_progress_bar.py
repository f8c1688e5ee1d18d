"""The progress bar of a query that the test controls."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import tqdm.notebook

from spark_group_source.lag.progress_bar import progress_bar
from tests.unit.lag.events import ends, offset, progress, source
from tests.waiting import eventually


class FakeProgress:
    def __init__(self, start: int, end: int, end_offset: int) -> None:
        self.json = json.dumps(progress(source(offset(t_0=(start, end)), ends(t_0=end_offset))))


class FakeQuery:
    """A query whose batches end when the test says so."""

    def __init__(self, *batches: tuple[int, int, int]) -> None:
        self.name: str | None = "orders"
        self.isActive = True
        self.recentProgress: Sequence[FakeProgress] = [FakeProgress(*each) for each in batches]
        self.error: Exception | None = None
        self.session_stopped = False

    @property
    def lastProgress(self) -> FakeProgress | None:  # noqa: N802 -- Spark's name
        if self.session_stopped:
            raise ConnectionError("the session was stopped")
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        if self.session_stopped:
            raise ConnectionError("the session was stopped")
        return self.error

    def batch(self, start: int, end: int, end_offset: int) -> None:
        self.recentProgress = [*self.recentProgress, FakeProgress(start, end, end_offset)]

    def end(self, error: Exception | None = None) -> None:
        self.isActive, self.error = False, error


def test_in_a_notebook_the_length_of_the_bar_is_the_done_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_group_source.lag.progress_bar.tqdm", tqdm.notebook.tqdm)
    query = FakeQuery()
    with progress_bar(query, display=False) as shown:
        bar: Any = shown  # a notebook's
        _, widget, _ = bar.container.children
        query.batch(0, 20, end_offset=80)
        eventually(lambda: bar.n == 20)
        bar.refresh()
        assert (widget.value, widget.max, widget.layout.width) == (20, 80, None)
        query.batch(20, 60, end_offset=80)
        eventually(lambda: bar.n == 60)
        query.end()
    assert (widget.value, widget.max, widget.bar_style) == (60, 60, "success")


def test_the_bar_follows_the_batches_and_ends_at_100_percent() -> None:
    query, screen = FakeQuery(), io.StringIO()
    with progress_bar(query, file=screen) as bar:
        unknown = bar.total
        query.batch(0, 25, 100)
        eventually(lambda: bar.n == 25)
        assert (unknown, bar.total) == (None, 100)
        query.batch(25, 90, 100)
        query.batch(90, 100, 100)
        eventually(lambda: bar.n == 100)
        query.end()
    last = screen.getvalue().rstrip().splitlines()[-1].rsplit("\r", 1)[-1]
    assert last.startswith("orders: 100%|")
    assert "100/100" in last


@pytest.mark.parametrize(
    ("before", "after", "ended", "shown"),
    [
        ([(0, 10, 40)], [(10, 40, 70)], True, (40, 40)),
        ([(0, 10, 40)], [], True, (10, 10)),
        ([], [], True, (0, 0)),
        ([(0, 10, 40)], [], False, (10, 40)),
    ],
    ids=["ended before the last update", "another member read a part", "without records", "continues"],
)
def test_a_run_ends_at_100_percent_and_the_bar_of_a_query_that_continues_keeps_its_value(
    before: list[tuple[int, int, int]], after: list[tuple[int, int, int]], ended: bool, shown: tuple[int, int]
) -> None:
    query = FakeQuery(*before)
    with progress_bar(query, file=io.StringIO()) as bar:
        for each in after:
            query.batch(*each)
        if ended:
            query.end()
    assert (bar.n, bar.total) == shown


def test_after_a_failure_the_bar_keeps_its_value_and_is_marked_failed() -> None:
    query, screen, error = FakeQuery((0, 10, 40)), io.StringIO(), RuntimeError("it broke")
    query.end(error)
    with pytest.raises(RuntimeError, match="it broke"), progress_bar(query, file=screen) as bar:
        raise error
    assert (bar.n, bar.total) == (10, 40)
    assert screen.getvalue().rstrip().endswith("failed]")


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "progress-bar"]


def test_the_thread_ends_with_the_block_and_a_stopped_session_hides_no_error() -> None:
    query = FakeQuery((0, 10, 40))
    with pytest.raises(KeyboardInterrupt), progress_bar(query, file=io.StringIO()):  # noqa: PT012 - it is the block
        assert len(threads()) == 1
        query.session_stopped = True
        raise KeyboardInterrupt
    assert threads() == []

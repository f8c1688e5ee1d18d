"""The progress bar as it is drawn, over a query that a test drives."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
import tqdm.notebook

from spark_group_source.clock import Deadline
from spark_group_source.lag.progress_bar import progress_bar
from tests.unit.lag.events import ends, offset, progress, source

PATIENCE_S = 90.0
RUN = uuid.UUID(int=1)


class Told:
    """A progress."""

    def __init__(self, start: int, end: int, log: int) -> None:
        told = progress(source(offset(t_0=(start, end)), ends(t_0=log)), run=RUN)
        self.json = json.dumps(told)


class FakeQuery:
    """A query whose batches the test ends."""

    def __init__(self, *told: Told) -> None:
        self.name: str | None = "orders"
        self.isActive = True
        self.recentProgress: Sequence[Told] = told
        self.error: Exception | None = None
        self.gone = False

    @property
    def lastProgress(self) -> Told | None:  # noqa: N802 -- Spark's name
        if self.gone:
            raise ConnectionError("the session was stopped")
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> Exception | None:
        if self.gone:
            raise ConnectionError("the session was stopped")
        return self.error

    def batch(self, start: int, end: int, log: int) -> None:
        self.recentProgress = [*self.recentProgress, Told(start, end, log)]

    def end(self, error: Exception | None = None) -> None:
        self.isActive, self.error = False, error


def drawn(bar: Any, done: int) -> None:
    """Waits until the bar shows so many."""
    deadline = Deadline.after(PATIENCE_S)
    while bar.n != done:
        assert not deadline.expired(), f"the bar stands at {bar.n}"
        time.sleep(0.01)


def test_in_a_notebook_the_bar_is_as_long_as_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_group_source.lag.progress_bar.tqdm", tqdm.notebook.tqdm)
    query = FakeQuery()
    with progress_bar(query, display=False) as made:
        bar: Any = made  # a notebook's
        _, widget, _ = bar.container.children
        query.batch(0, 20, log=80)
        drawn(bar, 20)
        bar.refresh()
        assert (widget.value, widget.max, widget.layout.width) == (20, 80, None)
        query.batch(20, 60, log=80)
        drawn(bar, 60)
        query.end()
    assert (widget.value, widget.max, widget.bar_style) == (60, 60, "success")


def test_the_bar_follows_the_batches_and_ends_at_100_percent() -> None:
    query, screen = FakeQuery(), io.StringIO()
    with progress_bar(query, file=screen) as bar:
        unknown = bar.total
        query.batch(0, 25, 100)
        drawn(bar, 25)
        assert (unknown, bar.total) == (None, 100)
        query.batch(90, 100, 100)
        drawn(bar, 100)
        query.end()
    last = screen.getvalue().rstrip().splitlines()[-1].rsplit("\r", 1)[-1]
    assert last.startswith("orders: 100%|")
    assert "100/100" in last


def test_batches_that_came_before_the_bar_count() -> None:
    query = FakeQuery(Told(0, 10, 40), Told(10, 20, 50))
    with progress_bar(query, file=io.StringIO()) as bar:
        assert (bar.n, bar.total) == (20, 40)


def test_batches_that_ended_between_two_looks_count() -> None:
    query = FakeQuery()
    with progress_bar(query, file=io.StringIO()) as bar:
        query.recentProgress = [Told(0, 10, 40), Told(10, 40, 50)]
        drawn(bar, 40)
        assert bar.total == 40


def test_a_run_that_ended_before_the_last_look_is_at_100_percent() -> None:
    query = FakeQuery(Told(0, 10, 40))
    with progress_bar(query, file=io.StringIO()) as bar:
        query.batch(10, 40, 70)
        query.end()
    assert (bar.n, bar.total) == (40, 40)


def test_a_run_of_which_another_member_read_a_part_ends_at_100_percent() -> None:
    query = FakeQuery(Told(0, 10, 40))
    with progress_bar(query, file=io.StringIO()) as bar:
        query.end()
    assert (bar.n, bar.total) == (10, 10)


def test_a_run_with_nothing_to_read_ends_with_an_empty_bar() -> None:
    query = FakeQuery()
    with progress_bar(query, file=io.StringIO()) as bar:
        query.end()
    assert (bar.n, bar.total) == (0, 0)


def failing(query: FakeQuery, screen: io.StringIO, seen: list[Any]) -> None:
    with progress_bar(query, file=screen) as bar:
        seen.append(bar)
        query.end(RuntimeError("it broke"))
        raise RuntimeError("it broke")


def test_after_a_failure_the_bar_stays_where_it_was_and_says_so() -> None:
    screen, seen = io.StringIO(), list[Any]()
    with pytest.raises(RuntimeError, match="it broke"):
        failing(FakeQuery(Told(0, 10, 40)), screen, seen)
    (bar,) = seen
    assert (bar.n, bar.total) == (10, 40)
    assert screen.getvalue().rstrip().endswith("failed]")


def test_a_query_that_goes_on_keeps_its_bar_as_it_is() -> None:
    query = FakeQuery(Told(0, 10, 40))
    with progress_bar(query, file=io.StringIO()) as bar:
        pass
    assert (bar.n, bar.total) == (10, 40)


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "progress-bar"]


def interrupted(query: FakeQuery) -> None:
    with progress_bar(query, file=io.StringIO()):
        assert len(threads()) == 1
        query.gone = True
        raise KeyboardInterrupt


def test_no_thread_outlives_the_block_and_a_session_that_is_gone_hides_no_error() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(FakeQuery(Told(0, 10, 40)))
    assert threads() == []

"""A progress bar for AvailableNow runs and for backlogs, in terminals and notebooks. Needs the extra ``progress``."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from tqdm.auto import tqdm

from spark_group_source.lag.backlog import Backlog

log = logging.getLogger(__name__)

INTERVAL = 0.5
"""Seconds between two looks at the query."""

JOIN_TIMEOUT = 10.0
"""Seconds that the end of a block waits for a look under way; one at a server that is gone is left behind."""


class Progress(Protocol):
    """What is needed of Spark's ``StreamingQueryProgress``."""

    @property
    def json(self) -> str:
        """All of it, as JSON."""


class Query(Protocol):
    """What is needed of Spark's ``StreamingQuery``, of Spark Connect's too."""

    @property
    def name(self) -> str | None: ...

    @property
    def isActive(self) -> bool: ...

    @property
    def lastProgress(self) -> Progress | None: ...

    @property
    def recentProgress(self) -> Sequence[Progress]: ...

    def exception(self) -> Exception | None: ...


@contextmanager
def progress_bar(query: Query, **options: Any) -> Iterator[tqdm[Any]]:
    """Shows how much of a query's backlog is done for as long as the block lasts::

        with progress_bar(query):
            query.awaitTermination()

    The backlog is what was in the logs when the first batch was planned, so that the bar of an AvailableNow run ends at
    100 % however fast the logs grow, and that of another query comes there when it has caught up. Before the first
    batch has ended nothing is known: with ``maxOffsetsPerTrigger`` the bar has steps. After a failure it stays where
    it was.

    Args:
        query: running or ended; Spark Connect's too.
        options: of ``tqdm``, for example ``desc`` or ``file``.
    """
    given = {"desc": query.name or "backlog", "unit": " records", "unit_scale": True, **options}
    with tqdm(**given) as bar:
        view = _View(query, bar)
        view.start()
        try:
            yield bar
        finally:
            view.finish()


class _View:
    """A query and its bar, with the thread that looks at the one and draws the other."""

    def __init__(self, query: Query, bar: tqdm[Any]) -> None:
        self._query = query
        self._bar = bar
        self._backlog = Backlog()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress-bar", daemon=True)

    def start(self) -> None:
        """Draws what is known, and goes on doing so."""
        self._look()
        self._thread.start()

    def finish(self) -> None:
        """Ends the thread, and the bar as the query has ended. What goes wrong here hides no error of the block's."""
        self._over.set()
        self._thread.join(JOIN_TIMEOUT)
        if self._thread.is_alive():
            return
        try:
            self._look()
            if self._query.exception() is not None:
                self._bar.set_postfix_str("failed")
            elif not self._query.isActive:
                # Another member of the group may have read some of it, or a trigger of Spark's less than there was.
                self._set_total(self._bar.n)
                self._bar.refresh()
        except Exception as error:
            log.debug("the query cannot be looked at any more: %s", error)

    def _follow(self) -> None:
        try:
            while not self._over.wait(INTERVAL):
                self._look()
        except Exception as error:  # the session was stopped, for example: that is not the bar's to tell
            log.debug("the query cannot be looked at any more: %s", error)

    def _look(self) -> None:
        if self._backlog.total is None:
            # The backlog begins with the first batch, and several may have ended between two looks.
            seen = self._query.recentProgress
        else:
            last = self._query.lastProgress
            seen = [] if last is None else [last]
        for each in seen:
            self._backlog.update(json.loads(each.json))
        if self._backlog.total is not None:
            self._set_total(self._backlog.total)
        self._bar.update(self._backlog.done - self._bar.n)
        self._bar.refresh()

    def _set_total(self, total: float) -> None:
        """A notebook's bar learns of a total by reset() alone, which also forgets what was done, and since when."""
        bar = self._bar
        if bar.disable or total == bar.total:
            bar.total = total
            return
        done, began = bar.n, bar.start_t
        bar.reset(total)
        bar.n, bar.start_t, bar.last_print_t = done, began, began

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

UPDATE_INTERVAL = 0.5
"""Time between two updates of the bar, in seconds."""

JOIN_TIMEOUT = 10.0
"""How long the end of a block waits for an update that is still running, in seconds. A server that died may never
answer."""


class Progress(Protocol):
    """The part of Spark's ``StreamingQueryProgress`` that the bar uses."""

    @property
    def json(self) -> str:
        """The whole progress as JSON."""


class Query(Protocol):
    """The part of Spark's ``StreamingQuery`` that the bar uses, also in Spark Connect."""

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
    """Shows how much of a query's backlog is done while the block runs::

        with progress_bar(query):
            query.awaitTermination()

    The backlog is the records that existed when the query planned its first batch. The bar of an AvailableNow run
    always ends at 100 %; the bar of another query reaches 100 % when the query has caught up. The bar moves when a
    batch ends, so set ``maxOffsetsPerTrigger`` to see steps. If the query fails, the bar stays at its last value.

    Args:
        query: a running or ended query. It may be a query of Spark Connect.
        options: arguments for ``tqdm``, for example ``desc`` or ``file``.
    """
    arguments = {"desc": query.name or "backlog", "unit": " records", "unit_scale": True, **options}
    with tqdm(**arguments) as bar:
        updater = _BarUpdater(query, bar)
        updater.start()
        try:
            yield bar
        finally:
            updater.finish()


class _BarUpdater:
    """Updates a bar from a query's progress, on a thread of its own."""

    def __init__(self, query: Query, bar: tqdm[Any]) -> None:
        self._query = query
        self._bar = bar
        self._backlog = Backlog()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._update_regularly, name="progress-bar", daemon=True)

    def start(self) -> None:
        """Draws the bar and starts the thread."""
        self._update()
        self._thread.start()

    def finish(self) -> None:
        """Ends the thread and draws the bar's last state. A failure here must not hide an error of the block."""
        self._finished.set()
        self._thread.join(JOIN_TIMEOUT)
        if self._thread.is_alive():
            return
        try:
            self._update()
            if self._query.exception() is not None:
                self._bar.set_postfix_str("failed")
            elif not self._query.isActive:
                # Another member may have read a part of the backlog, or the trigger may have stopped the query before
                # the end.
                self._set_total(self._bar.n)
                self._bar.refresh()
        except Exception as error:
            log.debug("the query's progress is no longer available: %s", error)

    def _update_regularly(self) -> None:
        try:
            while not self._finished.wait(UPDATE_INTERVAL):
                self._update()
        except Exception as error:  # for example, the session was stopped: the bar must not report that
            log.debug("the query's progress is no longer available: %s", error)

    def _update(self) -> None:
        for progress in self._new_progress():
            self._backlog.update(json.loads(progress.json))
        if self._backlog.total is not None:
            self._set_total(self._backlog.total)
        self._bar.update(self._backlog.done - self._bar.n)
        self._bar.refresh()

    def _new_progress(self) -> Sequence[Progress]:
        if self._backlog.total is None:
            # The backlog starts at the first batch, and several batches may have ended since the last update.
            return self._query.recentProgress
        last = self._query.lastProgress
        if last is None:
            return []
        return [last]

    def _set_total(self, total: float) -> None:
        """Sets a new total. A notebook's bar only accepts it in ``reset()``, which clears count and start time."""
        bar = self._bar
        if bar.disable or total == bar.total:
            bar.total = total
            return
        done, start = bar.n, bar.start_t
        bar.reset(total)
        bar.n, bar.start_t, bar.last_print_t = done, start, start

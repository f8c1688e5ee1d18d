"""Drivers of queries, started as Spark's reader starts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from spark_group_source.offsets import BatchOffset
from spark_group_source.options.parsing import parse_options
from spark_group_source.query.driver import Driver


@contextmanager
def drivers(base: Mapping[str, str]) -> Iterator[Callable[..., Driver]]:
    """Starts drivers with options on top of ``base``, and closes them at the end."""
    running: list[Driver] = []

    def start(logged: BatchOffset | None = None, *, available_now: bool = False, **options: str) -> Driver:
        """Starts a query and waits for its first assignment. ``logged`` is where its checkpoint stands."""
        parsed = parse_options({**base, **options})
        running.append(Driver(parsed.with_client_id("test")))
        running[-1].start(logged or BatchOffset())
        if available_now:
            running[-1].prepare_for_available_now()
        running[-1].await_assignment()
        return running[-1]

    yield start
    for driver in running:
        driver.close()


def spans(batch: BatchOffset) -> dict[int, tuple[int, int]]:
    """Start and end of each partition that a batch of one topic reads."""
    return {each.partition: (each.start, each.end) for each in batch.reads()}

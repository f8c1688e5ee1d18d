"""Where partitions start that have no committed offset: ``startingOffsets`` and ``startingOffsetsFallback``.

A committed offset always goes first here, so ``committed`` with a fallback is the same as the fallback alone.
"""

from __future__ import annotations

from enum import Enum

from spark_group_source.errors import OptionError


class StartAt(Enum):
    """A place in the log, as ListOffsets asks for it; ``COMMITTED``: none, the query fails."""

    EARLIEST = -2
    LATEST = -1
    COMMITTED = None


def parse_start(text: str) -> StartAt:
    """The value of ``startingOffsets``.

    Raises:
        ValueError: it is none; the message goes on from "It must be".
    """
    try:
        return StartAt[text.strip().upper()]
    except KeyError:
        raise ValueError("earliest, latest or committed") from None


def parse_fallback(text: str) -> StartAt:
    """The value of ``startingOffsetsFallback``.

    Raises:
        ValueError: it is none; the message goes on from "It must be".
    """
    try:
        return {"earliest": StartAt.EARLIEST, "latest": StartAt.LATEST, "fail": StartAt.COMMITTED}[text.strip().lower()]
    except KeyError:
        raise ValueError("earliest, latest or fail") from None


def start_at(given: StartAt, fallback: StartAt | None, reset: bool) -> StartAt:
    """Where a partition without a committed offset starts.

    Args:
        given: ``startingOffsets``.
        fallback: ``startingOffsetsFallback``, if given.
        reset: ``resetOffsetsOnStart``.

    Raises:
        OptionError: they contradict each other.
    """
    if given is not StartAt.COMMITTED and fallback is not None:
        raise OptionError(
            f"Option 'startingOffsetsFallback' is given, and 'startingOffsets' is {given.name.lower()}.",
            "Leave it out: 'startingOffsets' is where partitions without a committed offset start; or set that to"
            " committed.",
        )
    if given is StartAt.COMMITTED and reset:
        raise OptionError(
            "Option 'resetOffsetsOnStart' is true, and 'startingOffsets' is committed.",
            "There is nothing to reset to: set 'startingOffsets' to earliest or latest.",
        )
    return given if given is not StartAt.COMMITTED else fallback or StartAt.LATEST

"""Errors as users read them: the sentence, without the calls that led to it."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded, GroupSourceError

log = logging.getLogger(__name__)

HIDE = "SPARK_HIDE_TRACEBACK"
"""With this in its environment PySpark sends the JVM an error without its traceback."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Cuts what an error's message says already: its traceback, and causes whose text is part of it.

    What remains is a bug or a failure of the user's own function: these keep their tracebacks. Spark ends the process
    that raises, so the environment serves this error alone. ``DEBUG`` logs the whole of it.
    """
    try:
        yield
    except GroupSourceError as error:
        log.debug("the error that Spark is given: %s", error, exc_info=True)
        cause = _untold(error)
        if cause is None and type(error) is not GroupSourceError:
            os.environ[HIDE] = "1"
        raise error.with_traceback(None) from cause


def _untold(error: BaseException) -> BaseException | None:
    """The first cause that the error's message does not contain."""
    cause = error.__cause__
    if isinstance(cause, GroupSourceError):
        return _untold(cause)
    of_network = isinstance(error, BrokerUnavailable | DeadlineExceeded | AuthenticationFailed)
    return None if of_network and isinstance(cause, OSError | UnicodeError) else cause

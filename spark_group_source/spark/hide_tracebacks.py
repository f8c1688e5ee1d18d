"""Shows users the message of an error without its traceback."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator

from spark_group_source.errors import AuthenticationFailed, GroupSourceError, RetriableError

log = logging.getLogger(__name__)

HIDE = "SPARK_HIDE_TRACEBACK"
"""If this environment variable is set, PySpark sends errors to the JVM without tracebacks."""


@contextlib.contextmanager
def hide_tracebacks() -> Iterator[None]:
    """Removes the traceback of an error, and each cause whose text the error's message already contains.

    Bugs, and failures of the user's own functions, keep their tracebacks. Spark ends the process that raises, so the
    environment variable affects only this error. At ``DEBUG`` the log has the full traceback.
    """
    try:
        yield
    except GroupSourceError as error:
        log.debug("the error that Spark receives: %s", error, exc_info=True)
        cause = _unreported_cause(error)
        is_unexpected = type(error) is GroupSourceError
        if cause is None and not is_unexpected:
            os.environ[HIDE] = "1"
        raise error.with_traceback(None) from cause


def _unreported_cause(error: BaseException) -> BaseException | None:
    """The first cause that the error's message does not contain."""
    cause = error.__cause__
    if isinstance(cause, GroupSourceError):
        return _unreported_cause(cause)
    is_network_error = isinstance(error, RetriableError | AuthenticationFailed)
    if is_network_error and isinstance(cause, OSError | UnicodeError):
        return None
    return cause

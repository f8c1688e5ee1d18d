"""The log of a Python worker, which Spark copies to the stderr of its executor."""

from __future__ import annotations

import logging
import sys

from spark_group_source.spark.runner_log import LINE_FORMAT, TIME_FORMAT


def warn_on_stderr() -> None:
    """Logs this package's warnings and errors to stderr, unless logging is configured: Spark configures none here.

    Not the lines at ``INFO``: a task logs each retry of each partition.
    """
    package = logging.getLogger("spark_group_source")
    is_configured = package.handlers or logging.getLogger().handlers
    if is_configured:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LINE_FORMAT, TIME_FORMAT))
    package.addHandler(handler)
    package.setLevel(logging.WARNING)

"""The log of a Python worker, which Spark copies to the stderr of its executor."""

from __future__ import annotations

import logging
import sys

from spark_group_source.spark.runner_log import log_package


def warn_on_stderr() -> None:
    """Logs this package's warnings and errors to stderr, unless logging is configured. Spark configures no logging
    here.

    Lines at ``INFO`` are left out, because a task logs each retry of each partition.
    """
    log_package(lambda: logging.StreamHandler(sys.stderr), logging.WARNING)

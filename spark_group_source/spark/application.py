"""The properties of a query's Spark application that its readers need."""

from __future__ import annotations

from typing import NamedTuple

WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""With this setting, Spark bounds an AvailableNow run of a source that cannot bound it itself. In PySpark 4.1, no
Python source can."""


class Application(NamedTuple):
    """The Spark application that a query runs in."""

    name: str = "pyspark"
    id: str = ""
    encrypts_files: bool = False
    """Whether Spark encrypts its temporary files. If so, this source writes none."""
    wraps_available_now: bool = False
    """Whether Spark's setting :data:`WRAPPER` is on."""

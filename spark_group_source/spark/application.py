"""The Spark application that a query runs in, as its readers know it."""

from __future__ import annotations

from typing import NamedTuple

WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""With it, Spark itself bounds AvailableNow runs of sources that cannot, as of all Python sources of PySpark 4.1."""


class Application(NamedTuple):
    """The Spark application that a query runs in."""

    name: str = "pyspark"
    id: str = ""
    encrypts_files: bool = False
    """Whether Spark encrypts its temporary files. Then this source writes none."""
    wraps_available_now: bool = False
    """Whether Spark has the setting :data:`WRAPPER` on."""

"""Makes ``format("kafka-group")`` known to Spark 4, which imports all modules ``pyspark_...`` on its path."""

from spark_group_source.spark.source import GroupSource
from spark_group_source.spark.tasks import Application


class DefaultSource(GroupSource):
    """The source without :func:`spark_group_source.register`: it knows nothing of the session's settings."""

    application = Application(encrypts_files=True)


__all__ = ["DefaultSource"]

"""Makes ``format("kafka-group")`` known to Spark, which imports all modules ``pyspark_...`` on its path."""

from pyspark.sql import datasource

from spark_group_source.spark.application import Application
from spark_group_source.spark.source import GroupSource

if hasattr(datasource, "Filter"):  # PySpark 4.0 would not let register(spark) replace the class that it finds here

    class DefaultSource(GroupSource):
        """The source without :func:`spark_group_source.register`: it knows nothing of the session's settings."""

        application = Application(encrypts_files=True)

"""The data source that Spark looks up as ``kafka-group``."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from spark_group_source.spark.application import WRAPPER, Application
from spark_group_source.spark.hide_tracebacks import hide_tracebacks
from spark_group_source.spark.notifications.client import ServerAddress
from spark_group_source.spark.schema import source_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_group_source.options.source_options import SourceOptions


class GroupSource(DataSource):
    """``format("kafka-group")``: Kafka topics read as a member of a consumer group."""

    application = Application()
    """The application for the client id and commit metadata; :func:`register` sets it."""

    notifications = ServerAddress()
    """The socket that reports completed batches; :func:`register` sets it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Here and below, each function imports its own modules: the executors, the stream runner and the planner also
        # import this module, and each of them needs only some of the modules.
        from spark_group_source.options.parsing import parse_options

        # Spark constructs the source in load(), so load() rejects wrong options.
        with hide_tracebacks():
            # Bytes, because Spark also sends the source to the executors, which import no modules of the options or the
            # group.
            self._pickled = pickle.dumps(parse_options(options))

    @property
    def _parsed(self) -> SourceOptions:
        return cast("SourceOptions", pickle.loads(self._pickled))

    @classmethod
    def name(cls) -> str:
        """The name for ``format(...)``."""
        return "kafka-group"

    def schema(self) -> StructType:
        """The schema of Spark's own Kafka source."""
        return source_schema(self._parsed.include_headers)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of one streaming query."""
        from spark_group_source.spark.stream import GroupStreamReader

        return GroupStreamReader(self._parsed, schema, self.application, self.notifications)

    @hide_tracebacks()
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one batch query.

        Raises:
            OptionError: an option that batch queries need is missing, or a value is not allowed in a batch query.
        """
        from spark_group_source.options.table import ignored_in_batch_queries
        from spark_group_source.spark.batch import GroupBatchReader

        return GroupBatchReader(self._parsed, schema, self.application, ignored_in_batch_queries(self.options))


_registered: weakref.WeakKeyDictionary[SparkSession, Application] = weakref.WeakKeyDictionary()
"""Sessions in which the source is registered: Spark warns about a repeated registration."""


def register(spark: SparkSession) -> None:
    """Registers ``format("kafka-group")`` in a Spark session. Repeated calls do nothing."""
    from spark_group_source.spark.notifications.set_up import report_completed_batches

    # The processes in which Spark creates readers have no session, so the class carries the application's name and id.
    application = Application(
        name=_setting(spark, "spark.app.name", "pyspark"),
        id=_setting(spark, "spark.app.id", ""),
        encrypts_files=_setting(spark, "spark.io.encryption.enabled", "false") == "true",
        wraps_available_now=_setting(spark, WRAPPER, "false") == "true",
    )
    if _registered.get(spark) == application:
        return
    attributes = {"application": application, "notifications": report_completed_batches(spark)}
    spark.dataSource.register(type(GroupSource.__name__, (GroupSource,), attributes))
    _registered[spark] = application


def _setting(spark: SparkSession, name: str, default: str) -> str:
    value = spark.conf.get(name, default)
    if value is None:
        return default
    return value

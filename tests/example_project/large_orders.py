"""The job: orders of 100 and more, out of all orders."""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json

from spark_group_source import register


def large_orders(spark: SparkSession, servers: str, topic: str, group: str) -> DataFrame:
    """A stream of the large orders in a topic."""
    register(spark)
    records = (
        spark.readStream.format("kafka-group")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.group.id", group)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    order = from_json(col("value").cast("string"), "id LONG, customer STRING, price DOUBLE")
    return records.select(order.alias("order")).select("order.*").where("price >= 100")

"""Tests of the job, on a real Kafka and a real Spark."""

from chispa import assert_df_equality
from large_orders import large_orders
from pyspark.sql.functions import sum as total

SCHEMA = "id LONG, customer STRING, price DOUBLE"


def test_large_orders_are_kept(kafka_spark, embedded_kafka, kafka_topic, kafka_group, run_available_now):
    topic = kafka_topic(partitions=2)
    embedded_kafka.produce(topic, ['{"id": 1, "price": 99.5}', '{"id": 2, "customer": "Ann", "price": 250.0}'])
    orders = large_orders(kafka_spark, embedded_kafka.bootstrap_servers, topic, kafka_group)
    expected = kafka_spark.createDataFrame([(2, "Ann", 250.0)], SCHEMA)
    assert_df_equality(run_available_now(orders), expected)
    assert embedded_kafka.lag(kafka_group, topic) == {0: 0, 1: 0}


def test_the_next_run_reads_only_new_records(kafka_spark, embedded_kafka, kafka_topic, kafka_group, run_available_now):
    topic = kafka_topic()
    orders = large_orders(kafka_spark, embedded_kafka.bootstrap_servers, topic, kafka_group)
    embedded_kafka.produce(topic, [("Ann", '{"id": 1, "price": 100.0}')])
    assert run_available_now(orders).count() == 1
    embedded_kafka.produce(topic, [{"key": "Bob", "value": '{"id": 2, "price": 300.0}', "headers": {"trace": "7"}}])
    expected = kafka_spark.createDataFrame([(2, None, 300.0)], SCHEMA)
    assert_df_equality(run_available_now(orders), expected)


def test_spending_adds_up(kafka_spark, embedded_kafka, kafka_topic, kafka_group, run_available_now):
    topic = kafka_topic(partitions=2)
    rows = kafka_spark.createDataFrame([(1, "Ann", 100.0), (2, "Bob", 5.0), (3, "Ann", 200.0)], SCHEMA)
    embedded_kafka.produce(topic, rows.selectExpr("customer AS key", "to_json(struct(*)) AS value"))
    orders = large_orders(kafka_spark, embedded_kafka.bootstrap_servers, topic, kafka_group)
    spending = orders.groupBy("customer").agg(total("price").alias("spent"))
    expected = kafka_spark.createDataFrame([("Ann", 300.0)], "customer STRING, spent DOUBLE")
    assert_df_equality(run_available_now(spending, output_mode="complete"), expected)

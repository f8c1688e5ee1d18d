"""Real Kafka for tests and demos, on a machine with only Python, PySpark and Java.

    from spark_group_source.testing import EmbeddedKafka

    with EmbeddedKafka() as kafka:
        kafka.create_topic("flights", partitions=4)
        kafka.produce("flights", [("UA", '{"delay": 3}')])
        print(kafka.bootstrap_servers)

No module of the source itself imports this package.
"""

from spark_group_source.testing.kafka import EmbeddedKafka

__all__ = ["EmbeddedKafka"]

"""A fake Kafka for tests: real bytes on loopback ports, no JVM, and failures on demand.

    from spark_group_source.testing.fake import FakeKafka, Fault

    with FakeKafka(brokers=2) as kafka:
        kafka.create_topic("flights", partitions=4)
        kafka.next("OffsetCommit", Fault(error=16), times=2)
        ...
        assert kafka.commits[-1].offsets == {("flights", 0): 5}

It speaks only the versions that this package sends. Time is not simulated: sessions end by :meth:`FakeKafka.expire`.
"""

from spark_group_source.testing.fake.faults import Fault
from spark_group_source.testing.fake.group_answers import Commit
from spark_group_source.testing.fake.kafka import FakeKafka

__all__ = ["Commit", "FakeKafka", "Fault"]

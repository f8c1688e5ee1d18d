"""A fake Kafka for tests: real bytes on loopback ports, no JVM, and failures on demand.

    from tests.fake import FakeKafka, Fault

    with FakeKafka(brokers=2) as kafka:
        kafka.create_topic("flights", partitions=4)
        kafka.next("OffsetCommit", Fault(error=16), times=2)
        ...
        assert kafka.commits[-1].offsets == {("flights", 0): 5}

It supports only the versions that this package sends, and both group protocols. Sessions end, of classic members after
the timeout that they ask for; :meth:`FakeKafka.expire` ends them earlier.
"""

from tests.fake.faults import Fault
from tests.fake.kafka import FakeKafka

__all__ = ["FakeKafka", "Fault"]

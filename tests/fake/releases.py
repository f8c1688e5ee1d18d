"""The request versions that brokers offer: recorded from Kafka's releases by kafka-python, and from others by users."""

from __future__ import annotations

from collections.abc import Mapping

from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

Offered = dict[int, tuple[int, int]]
"""The lowest and the highest version, by API key."""


def kafka(*release: int) -> Offered:
    """What brokers of this release offer to clients."""
    return dict(BROKER_API_VERSIONS[release])


EVENT_HUBS_2024: Offered = kafka(1, 0) | {
    1: (4, 6),
    **dict.fromkeys((2, 8, 9), (0, 8)),
    10: (0, 4),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    18: (0, 3),
    36: (0, 2),
}
"""oliveigah/klife, issue 13; the last three from twmb/franz-go, issue 1312. The others are those of Kafka 1.0, as
Event Hubs had them in 2020: Azure/azure-event-hubs-for-kafka, issue 69."""

EVENT_HUBS_2026: Offered = EVENT_HUBS_2024 | {3: (0, 9)}
"""twmb/franz-go, issue 1312. Their emulator still offers version 5 of Metadata, as in 2024."""

REDPANDA_2025: Offered = kafka(2, 4) | {1: (4, 11), 2: (0, 4), 3: (0, 7), 9: (1, 7), 10: (0, 3), 18: (0, 3)}
"""platformatic/kafka, issue 51. That shows nothing of the other requests: they are those of Kafka 2.4."""

ALL: Mapping[str, Offered] = {
    **{".".join(map(str, each)): kafka(*each) for each in ((2, 1), (2, 8), (3, 2), (4, 1))},
    "Event Hubs 2024": EVENT_HUBS_2024,
    "Event Hubs 2026": EVENT_HUBS_2026,
    "Redpanda 2025": REDPANDA_2025,
}
"""Those that tests try."""

"""The values, keys and headers of a topic's records, the same in every run."""

from __future__ import annotations

import json
import random

from benchmark.cases import LARGE_EVERY, Topic

MAX_VALUES, MAX_VALUE_BYTES = 10_000, 20_000_000
"""Maximum number of distinct values of a topic, and their maximum size in bytes."""
MIN_VALUE_BYTES = 80
SKEW = 1.4
"""The standard deviation of the logarithm of skewed sizes: half of the bytes are in a twelfth of the values."""
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "ledge")


def values(topic: Topic) -> list[str]:
    """Lines of JSON with the sizes that the topic names, at least :data:`MIN_VALUE_BYTES`."""
    rng = random.Random(topic.value_bytes)
    count = min(MAX_VALUES, MAX_VALUE_BYTES // topic.mean_value_bytes)
    return [_value(rng, _size(rng, topic, number)) for number in range(count)]


def _size(rng: random.Random, topic: Topic, number: int) -> int:
    if topic.skewed:
        return int(max(topic.value_bytes * rng.lognormvariate(-(SKEW**2) / 2, SKEW), MIN_VALUE_BYTES))
    if topic.large_value_bytes and number % LARGE_EVERY == 0:
        return topic.large_value_bytes
    return topic.value_bytes


def _value(rng: random.Random, size: int) -> str:
    event = {"id": f"{rng.getrandbits(32):08x}", "at": 1_700_000_000_000 + rng.randrange(10**9), "note": ""}
    missing = size - len(json.dumps(event, separators=(",", ":")))
    note = " ".join(rng.choices(WORDS, k=missing // 6 + 1))[:missing]
    return json.dumps(event | {"note": note.ljust(missing, ".")}, separators=(",", ":"))


def key(rng: random.Random, topic: Topic) -> str:
    """A key of a compacted topic."""
    return f"{rng.randrange(topic.records):08x}"


def headers(number: int) -> dict[str, str]:
    """The headers of record ``number``."""
    return {"trace": f"{number * 2_654_435_761 % 2**32:08x}", "origin": f"sensor-{number % 50}"}

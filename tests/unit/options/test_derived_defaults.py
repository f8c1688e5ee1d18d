"""Defaults derive from the options that the user sets."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from spark_group_source.options import values
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.table import OPTIONS
from tests.unit.options.test_options import GOOD

LARGEST = 2**31 - 1
NUMBERS: dict[Callable[[str], Any], tuple[int, int]] = {
    values.milliseconds: (1, LARGEST - 1),  # some need another that is longer
    values.duration: (0, 10**12 - 1),
    values.byte_size: (1024, LARGEST),
    values.byte_count: (0, LARGEST),
    values.socket_buffer_size: (1, LARGEST),
    values.positive_count: (1, 10**18 - 1),
    values.retry_count: (0, 10**9 - 1),
}
"""The minimum and maximum of each parser of numbers."""

SESSION_MS, BEAT_MS = "kafka.session.timeout.ms", "kafka.heartbeat.interval.ms"
SESSION = ("group.heartbeat_interval", "group.session_timeout")
WAIT_MS, REQUEST_MS, POLL_MS = "kafka.fetch.max.wait.ms", "kafka.request.timeout.ms", "kafkaConsumer.pollTimeoutMs"
FETCH = ("fetch.max_wait", "wire.request_timeout", "fetch.poll_timeout")
BACKOFFS = {
    "kafka.retry.backoff": "wire.retry_backoff",
    "kafka.reconnect.backoff": "wire.reconnect_backoff",
    "kafka.socket.connection.setup.timeout": "wire.connect_timeout",
}


def test_a_single_option_accepts_and_keeps_each_valid_value() -> None:
    for option in OPTIONS:
        if option.parse in NUMBERS and not option.name.startswith("kafka.sasl."):
            least, most = NUMBERS[option.parse]
            steps = [digits * 10**zeros for zeros in range(18) for digits in (1, 2, 3, 5, 9)]
            for number in (least, least + 1, most - 1, most, *(each for each in steps if least < each < most)):
                parsed = parse_options(GOOD | {option.name: str(number)})
                assert attrgetter(option.place)(parsed) == option.parse(str(number)), f"{option.name} {number}"
                assert parsed.group.revocation_timeout > 0, f"{option.name} {number}"


@pytest.mark.parametrize(
    ("given", "places", "seconds"),
    [
        ({}, SESSION, (3.0, 45.0)),
        ({SESSION_MS: "6000"}, SESSION, (2.0, 6.0)),
        ({SESSION_MS: "9000"}, SESSION, (3.0, 9.0)),
        ({SESSION_MS: "120000"}, SESSION, (3.0, 120.0)),
        ({BEAT_MS: "1000"}, SESSION, (1.0, 45.0)),
        ({BEAT_MS: "20000"}, SESSION, (20.0, 60.0)),
        ({BEAT_MS: "3000", SESSION_MS: "6000"}, SESSION, (3.0, 6.0)),
        ({}, FETCH, (0.5, 30.0, 120.0)),
        ({WAIT_MS: "30000"}, FETCH, (30.0, 60.0, 120.0)),
        ({WAIT_MS: "100000"}, FETCH, (100.0, 200.0, 200.0)),
        ({REQUEST_MS: "400"}, FETCH, (0.2, 0.4, 120.0)),
        ({REQUEST_MS: "400", POLL_MS: "200"}, FETCH, (0.1, 0.4, 0.2)),
        *(({f"{name}.ms": "60000"}, (place, f"{place}_max"), (60.0, 60.0)) for name, place in BACKOFFS.items()),
        *(({f"{name}.max.ms": "10"}, (place, f"{place}_max"), (0.01, 0.01)) for name, place in BACKOFFS.items()),
        *(
            ({f"{name}.ms": "5000", f"{name}.max.ms": "2000"}, (place, f"{place}_max"), (2.0, 2.0))
            for name, place in BACKOFFS.items()
        ),
    ],
)
def test_times_that_belong_together_derive_from_each_other(
    given: dict[str, str], places: tuple[str, ...], seconds: tuple[float, ...]
) -> None:
    assert attrgetter(*places)(parse_options(GOOD | given)) == seconds
